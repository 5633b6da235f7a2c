"""Asking for an answer, whole or in pieces, by any model of any system that generates."""

from __future__ import annotations

from collections.abc import Generator as Pieces
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.asking import ServedModels
from app.core.errors import BadRequest, InferenceFailed
from gourmet.client.deadline import Deadline
from gourmet.client.triton import Triton
from gourmet.contracts import (
    BadAnswer,
    BadModel,
    ExampleKind,
    GeneratedText,
    Generation,
    ModelInfo,
    Options,
    Tensors,
)


@dataclass(frozen=True)
class ReadyModel:
    """A model that is ready, with the system that it belongs to."""

    system: Generation
    info: ModelInfo


class Generator:
    def __init__(
        self, triton: Triton, systems: Mapping[str, Generation], configured: Mapping[str, str]
    ) -> None:
        self._triton = triton
        self.example_kinds: frozenset[ExampleKind] = frozenset(
            system.example_kind for system in systems.values()
        )
        self._models = ServedModels(triton, systems, configured, lambda _, __: True)

    def find(self, model: str, deadline: Deadline, system: str = "") -> ReadyModel:
        """`model`, or the one that is configured for `system`, or for the only system there is."""
        configured = self._models.configured
        if not model and not system and len(configured) != 1:
            raise BadRequest(
                "name a model: configured are " + ", ".join(configured.values())
                if configured
                else "this app has no system that generates text"
            )
        name = model or (configured[system] if system else next(iter(configured.values())))
        return ReadyModel(*self._models.find(name, deadline, system))

    def pieces(
        self, model: ReadyModel, example: bytes, options: Options, deadline: Deadline, request_id: str
    ) -> Pieces[GeneratedText | None, None, None]:
        """As the model makes them, a single one where it answers whole; None in a silence."""
        inputs = self._inputs(model, example, options)
        if not model.info.decoupled:
            answer = self._triton.infer(model.info.name, inputs, deadline, request_id)
            yield _generated(model, answer.outputs)
            return
        for outputs in self._triton.stream(model.info, inputs, deadline, request_id):
            yield None if outputs is None else _generated(model, outputs)

    def answers(
        self,
        model: ReadyModel,
        examples: Sequence[bytes],
        options: Options,
        deadline: Deadline,
        request_id: str,
    ) -> list[GeneratedText]:
        """As rows of one request, where the model answers whole; else one after another."""
        if model.info.decoupled:
            return [
                joined(
                    [piece for piece in self.pieces(model, example, options, deadline, request_id) if piece]
                )
                for example in examples
            ]
        rows = [self._inputs(model, example, options) for example in examples]
        together = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        outputs = self._triton.infer(model.info.name, together, deadline, request_id).outputs
        return [
            _generated(model, {name: values[row : row + 1] for name, values in outputs.items()})
            for row in range(len(examples))
        ]

    def ask_sample(self, system: str, deadline: Deadline) -> ModelInfo:
        """The model configured for `system`, if it answers; raise ServingError."""
        model = self.find("", deadline, system)
        for _ in self.pieces(model, model.system.sample(), {}, deadline, "readyz"):
            pass
        return model.info

    @staticmethod
    def _inputs(model: ReadyModel, example: bytes, options: Options) -> Tensors:
        try:
            return model.system.request_inputs(example, model.info, options)
        except ValueError as exc:
            raise BadRequest(str(exc)) from exc
        except BadModel as exc:
            raise InferenceFailed(str(exc)) from exc


def joined(pieces: list[GeneratedText]) -> GeneratedText:
    """The whole answer that `pieces` are."""
    last = pieces[-1] if pieces else GeneratedText("")
    return GeneratedText("".join(piece.text for piece in pieces), last.tokens, last.score)


def _generated(model: ReadyModel, outputs: Tensors) -> GeneratedText:
    try:
        return model.system.generated(outputs, model.info)
    except BadAnswer as exc:
        raise InferenceFailed(str(exc)) from exc
