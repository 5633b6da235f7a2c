"""Photos through a classifier: read, decoded where the model takes pixels, and asked about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from gourmet.bulk.asked_model import AskedModel
from gourmet.bulk.inputs import as_text, read_input
from gourmet.bulk.journal import Columns, Row
from gourmet.bulk.open_model import OpenModel
from gourmet.client.errors import InvalidRequest
from gourmet.contracts import Array, ModelInfo
from gourmet.errors import GourmetError, UsageError, printable
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.systems import registry

MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class _Read:
    """A photo as the model takes it, or why it cannot be asked about."""

    path: str
    sha256: str | None = None
    encoded: Array | None = None
    error: str = ""


@dataclass(frozen=True)
class Classifying:
    """Fulfils gourmet.bulk.workers.Work: what a classifier is asked about photos."""

    source: AskedModel
    requests: int = 16
    # Threads use all processors, as decoders and ONNX Runtime do; by processes it took a sixth longer.
    wants_processes: bool = False

    def open(self) -> Photos:
        asked = self.source.open()
        try:
            return Photos(asked, _classifier(asked.info))
        except BaseException:
            asked.close()
            raise


@dataclass(frozen=True)
class Photos:
    asked: OpenModel
    contract: PictureClassifier

    @property
    def model(self) -> ModelInfo:
        return self.asked.info

    def close(self) -> None:
        self.asked.close()

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
            outputs, version = self.asked.ask({self.model.inputs[0].name: np.concatenate(encoded)})
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


def _classifier(model: ModelInfo) -> PictureClassifier:
    if not model.system:
        raise UsageError(
            f"the config of {model.name!r} does not say which system it belongs to: name another"
        )
    found = registry.load(model.system)
    if not isinstance(found, PictureClassifier):
        raise UsageError(f"{model.name!r} does not classify pictures: name another with --model")
    return found
