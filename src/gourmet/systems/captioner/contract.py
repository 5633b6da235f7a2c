"""The captioner's contract: a photo in, a sentence out.

`captioner` answers whole and `captioner_stream` piece by piece; their inputs and outputs have the same names,
but that beams are only followed for whole answers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.contracts import NO_OPTIONS, ExampleKind, GeneratedText, ModelInfo, Options, Tensors
from gourmet.generation.contract import TextGenerator, limits, plain
from gourmet.pictures.made_up import views

IMAGE: Final = "IMAGE"
PROMPT: Final = "PROMPT"
# The other captions of a beam search, the best first, a line each. A stream has none.
ALTERNATIVES: Final = "ALTERNATIVES"

# Limits of the prompt, and of the caption after it.
MAX_PROMPT_CHARACTERS: Final = 100
MAX_PROMPT_TOKENS: Final = 16
MAX_NEW_TOKENS: Final = 40
SAMPLE: Final = Path(__file__).with_name("sample.jpg")
_VIEW: Final = (400, 300)


def prompt_of(value: object) -> str:
    """Return a row of PROMPT; raise ValueError with its fault."""
    try:
        prompt = value.decode() if isinstance(value, bytes) else str(value)
        prompt.encode()
    except UnicodeError as exc:
        raise ValueError(f"{PROMPT} is not UTF-8: {exc}") from exc
    if len(prompt) > MAX_PROMPT_CHARACTERS:
        raise ValueError(
            f"{PROMPT} has {len(prompt):,} characters; a caption begins with at most {MAX_PROMPT_CHARACTERS}"
        )
    return prompt.strip()


@dataclass(frozen=True)
class Captioner(TextGenerator):
    """Captions pictures. The web app checks a picture, and the served model checks it again."""

    name: str = "captioner"
    title: str = "Caption"
    example_kind: ExampleKind = "picture"
    example_input = IMAGE
    answer_output = "CAPTION"
    plural = "captioners"
    options = limits(MAX_NEW_TOKENS)

    def sample(self) -> bytes:
        return SAMPLE.read_bytes()

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        """Return `count` views of the sample: see gourmet.pictures.made_up."""
        return views(self.sample(), count, size=_VIEW, seed=seed)

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        answer = self.answer_to_sample(outputs, model)
        return f"the sample shows: {answer.text}{' (not sure)' if model.is_sure(answer) is False else ''}"

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        # Requests to a decoupled model go over the wire as JSON, which has no bytes.
        return self.tensors(base64.b64encode(example) if model.decoupled else example, model, options)

    def text_option(self, name: str, value: object) -> bytes | None:
        return prompt_of(value).encode() if name == "prompt" else None

    def other_fields(self, outputs: Tensors) -> dict[str, Any]:
        lines = outputs.get(ALTERNATIVES)
        return {"others": () if lines is None else plain(lines.ravel()[0]).splitlines()}

    def outputs(self, answer: GeneratedText) -> dict[str, Any]:
        return {**super().outputs(answer), ALTERNATIVES: "\n".join(answer.others)}


SYSTEM: Final = Captioner()
