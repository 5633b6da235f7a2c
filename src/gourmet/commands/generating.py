"""Examples through a served model that generates, several at a time: for the verbs that print the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gourmet.client.errors import InvalidRequest
from gourmet.client.triton import Answer
from gourmet.contracts import (
    ExampleKind,
    GeneratedText,
    Generation,
    ModelInfo,
    Options,
    Tensors,
    WarnsOfAnswers,
)
from gourmet.errors import UsageError
from gourmet.serving.connect import connect
from gourmet.systems import registry
from gourmet.tasks.checking import in_threads

# At a time: enough for the served loop to be full.
REQUESTS = 2
_ANSWERS_WITHIN_S = 600.0
Said = GeneratedText | InvalidRequest | ValueError
# What a model says to some examples, or why it says nothing, each with the version that said it.
Ask = Callable[[Sequence[Callable[[], bytes]]], list[tuple[Said, str]]]


def system_for(kind: ExampleKind, asked: str | None = None, of_model: str = "") -> Generation:
    """The system that is `asked` for, of those whose models answer such examples with a text.

    Else the one that a model says it is `of_model`, or the only one that is code.
    """
    found = {
        name: each
        for name, each in registry.load_all().items()
        if isinstance(each, Generation) and each.example_kind == kind
    }
    ours = [name for name in found if not registry.is_data(name)]
    name = asked or (of_model if of_model in found else ours[0] if len(ours) == 1 else "")
    if name not in found:
        raise UsageError(
            f"--system {name or '…'}: those that answer a {kind} with a text are {', '.join(found)}"
        )
    return found[name]


def asks(system: Generation, model: ModelInfo, url: str, options: Options) -> Ask:
    def ask(asked: Sequence[Callable[[], bytes]]) -> list[tuple[Said, str]]:
        try:
            sent = [example() for example in asked]
            rows = [system.request_inputs(example, model, options) for example in sent]
            answer = _infer(url, model, rows)
        except (InvalidRequest, ValueError) as exc:
            if len(asked) > 1:  # which of them is it?
                return [found for example in asked for found in ask([example])]
            return [(exc, "")]
        outputs, version = answer.outputs, answer.model_version
        split = [{name: each[row : row + 1] for name, each in outputs.items()} for row in range(len(asked))]
        answers = [system.generated(each, model) for each in split]
        if isinstance(system, WarnsOfAnswers):
            answers = [system.with_warning(*each) for each in zip(sent, answers, strict=True)]
        return [(each, version) for each in answers]

    return ask


def together(model: ModelInfo, wanted: int) -> int:
    return wanted if model.max_batch_size else 1


def answers(
    ask: Ask, model: ModelInfo, examples: Sequence[Callable[[], bytes]], *, wanted: int
) -> Iterator[Said]:
    """What the model says to each, in their order; so many are `wanted` in a request."""
    size = together(model, wanted)
    batches = [examples[first : first + size] for first in range(0, len(examples), size)]
    for found in in_threads(ask, batches, REQUESTS):
        yield from (answer for answer, _ in found)


def _infer(url: str, model: ModelInfo, rows: Sequence[Tensors]) -> Answer:
    inputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    with connect(url, _ANSWERS_WITHIN_S) as triton:
        return triton.infer(model.target, inputs)
