"""A text system for the tests: the words of a text in reverse order, whole or a word at a time.

No line of the app or of the engines names it. What works for it works for any system that generates text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gourmet.contracts import (
    NO_OPTIONS,
    Array,
    BadAnswer,
    BadModel,
    ExampleKind,
    GeneratedText,
    ModelInfo,
    Options,
    Task,
    Tensors,
)

MAX_TOKENS: Final = 1000
WORDS: Final = ("bread", "egg", "meat", "rice", "soup", "чай", "noodles")


@dataclass(frozen=True)
class Echo:
    """Fulfils gourmet.contracts.Generation."""

    name: str = "echo"
    task: Task = "generation"
    title: str = "Echo"
    model_variable: str = "ECHO_MODEL_NAME"
    default_model: str = "echo"
    metrics_prefix: str = "echo"
    example_kind: ExampleKind = "text"

    def sample(self) -> bytes:
        return b"one two three"

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        random = np.random.default_rng(seed)
        return [" ".join(random.choice(WORDS, random.integers(1, 12))).encode() for _ in range(count)]

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        sample = self.sample().decode()
        answer = self.generated(outputs, model).text
        if answer != "".join(pieces(sample)):
            raise BadAnswer(f"{model.name!r} answered {sample!r} with {answer!r}")
        return f"«{sample}» → {answer}"

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        if "text" not in {spec.name for spec in model.inputs}:
            raise BadModel(
                f"{model.name!r} has no input 'text', as echo models have: set {self.model_variable} to one"
            )
        if unknown := options.keys() - {"max_tokens"}:
            raise ValueError(f"{min(unknown)!r} is not an option of {model.name}; there is max_tokens")
        tokens = int(options.get("max_tokens", MAX_TOKENS))
        if not 1 <= tokens <= MAX_TOKENS:
            raise ValueError(f"max_tokens is {tokens}; it has to be from 1 to {MAX_TOKENS}")
        return {
            "text": np.array([example], np.object_),
            "max_tokens": np.array([tokens], np.int32),
        }

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        try:
            text, tokens = outputs["answer"].ravel()[0], outputs["tokens"].ravel()[0]
        except (KeyError, IndexError) as exc:
            raise BadAnswer(f"{model.name!r} does not answer as echo models do: {exc}") from exc
        return GeneratedText(text.decode() if isinstance(text, bytes) else str(text), int(tokens))


def pieces(text: str, max_tokens: int = MAX_TOKENS) -> list[str]:
    """The answer to `text`, a piece a word; joined they are the whole answer."""
    words = text.split()[::-1][:max_tokens]
    return [f" {word}" if at else word for at, word in enumerate(words)]


def outputs(text: str, tokens: int) -> dict[str, Array]:
    """The output tensors of one answer or piece."""
    return {
        "answer": np.array([text.encode()], np.object_),
        "tokens": np.array([tokens], np.int32),
    }


SYSTEM: Final = Echo()
