"""Photos through a classifier: read, decoded where the model takes pixels, and asked about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from gourmet.bulk.inputs import as_text, read_input
from gourmet.bulk.journal import Columns, Row
from gourmet.client.deadline import Deadline
from gourmet.client.errors import InvalidRequest
from gourmet.client.triton import Triton
from gourmet.contracts import Array, ModelInfo, Tensors
from gourmet.errors import GourmetError, printable
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError

MOST_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 60.0
# What a model says to some photos as it takes them, and its version; raises InvalidRequest.
AskModel = Callable[[Array], tuple[Tensors, str]]


@dataclass(frozen=True)
class _Read:
    """A photo as the model takes it, or why it cannot be asked about."""

    path: str
    sha256: str | None = None
    encoded: Array | None = None
    error: str = ""


def through(triton: Triton, model: ModelInfo) -> AskModel:
    (spec,) = model.inputs

    def ask(rows: Array) -> tuple[Tensors, str]:
        answer = triton.infer(model.target, {spec.name: rows}, Deadline(_TIMEOUT_S))
        return answer.outputs, answer.model_version

    return ask


@dataclass(frozen=True)
class Photos:
    model: ModelInfo
    contract: PictureClassifier
    ask: AskModel
    close: Callable[[], None]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return self.contract.labels_of(self.model)

    @cached_property
    def columns(self) -> Columns:
        shown: Mapping[str, type] = {self._shows: bool} if self._tells_subject else {}
        named = {"path": str, "answer": str, "probability": float, "sure": bool, **shown}
        return {
            **named,
            "error": str,
            "model": str,
            "version": str,
            "sha256": str,
            "probabilities": self.labels,
        }

    @property
    def _tells_subject(self) -> bool:
        return bool(self.contract.subject and self.model.subject_threshold)

    @property
    def _shows(self) -> str:
        return f"shows_{self.contract.subject}"

    def rows(self, paths: Sequence[str]) -> list[Row]:
        """One for each; a photo that cannot be used has a reason, and any other failure is raised."""
        read = [self._read(path) for path in paths]
        answers = iter(self._answers([each.encoded for each in read if each.encoded is not None]))
        return [self._row(each, next(answers) if each.encoded is not None else each.error) for each in read]

    def _read(self, path: str) -> _Read:
        try:
            data = read_input(path, MOST_BYTES)
        except OSError as exc:
            return _Read(path, error=f"it cannot be read: {exc.strerror or exc}")
        digest = hashlib.sha256(data).hexdigest()
        try:
            return _Read(path, digest, self.contract.encode(data, self.model.inputs[0].datatype))
        except PictureError as exc:
            return _Read(path, digest, error=f"{exc} [{exc.code}]")

    def _answers(self, encoded: Sequence[Array]) -> list[dict[str, Any] | str]:
        """What the model says to each, or why it refuses it."""
        if not encoded:
            return []
        try:
            outputs, version = self.ask(np.concatenate(encoded))
        except InvalidRequest as exc:
            if len(encoded) > 1:  # which of them is it?
                return [found for each in encoded for found in self._answers([each])]
            return [str(exc).removeprefix(f"{self.model.inputs[0].name} row 0 of 1: ")]
        rows = self.contract.probabilities(outputs, self.model)
        if rows.shape != (len(encoded), len(self.labels)) or not self.contract.are_probabilities(rows):
            raise GourmetError(
                f"{self.model.name} said to {len(encoded)} photos probabilities of shape {list(rows.shape)}"
            )
        relevance = self.contract.relevance(outputs, self.model)
        shown = (
            [None] * len(rows) if relevance is None else (relevance >= self.model.subject_threshold).tolist()
        )
        return [
            self._found(row, is_shown, version) for row, is_shown in zip(rows.tolist(), shown, strict=True)
        ]

    def _found(self, probabilities: Sequence[float], is_shown: bool | None, version: str) -> dict[str, Any]:
        best = max(range(len(self.labels)), key=probabilities.__getitem__)
        probability = probabilities[best]
        return {
            "answer": self.labels[best],
            "probability": round(probability, 6),
            "sure": is_shown is not False and probability >= self.model.threshold,
            **({self._shows: is_shown} if self._tells_subject else {}),
            "error": None,
            "model": self.model.name,
            "version": version,
            "probabilities": {
                label: round(each, 6) for label, each in zip(self.labels, probabilities, strict=True)
            },
        }

    def _row(self, read: _Read, found: dict[str, Any] | str) -> Row:
        answered = found if isinstance(found, dict) else {"error": printable(found)}
        all_of_it = {"path": as_text(read.path), "sha256": read.sha256, "model": self.model.name, **answered}
        return {name: all_of_it.get(name) for name in self.columns}
