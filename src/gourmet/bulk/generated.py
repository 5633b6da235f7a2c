"""Rows of what a model makes of texts or of pictures: a translation, a caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from gourmet.bulk.asked_model import AskedModel
from gourmet.bulk.inputs import as_text, read_input
from gourmet.bulk.journal import Columns, Row
from gourmet.bulk.open_model import OpenModel
from gourmet.client.errors import InvalidRequest
from gourmet.contracts import ExampleKind, GeneratedText, Generation, ModelInfo, Tensors, WarnsOfAnswers
from gourmet.errors import printable
from gourmet.pictures.header import look
from gourmet.systems import registry

_MOST_BYTES: Final = 64 << 20
# What a model says to an input, or why it says nothing, and the version that said it.
_Said = tuple[GeneratedText | Exception, str]


@dataclass(frozen=True)
class Generating:
    """Fulfils gourmet.bulk.workers.Work: what a system's model is asked about texts or pictures."""

    source: AskedModel
    system: str
    made: str  # the column of the answers
    options: tuple[tuple[str, int | str], ...]
    requests: int

    @property
    def wants_processes(self) -> bool:
        """A loop of words is Python for a good part: two of them in one process had the pace of one."""
        return bool(self.source.folder)

    def open(self) -> GeneratedRows:
        return self.of(self.source.open())

    def of(self, model: OpenModel) -> GeneratedRows:
        return GeneratedRows(model, registry.generation(self.system), self.made, dict(self.options))


@dataclass(frozen=True)
class GeneratedRows:
    asked: OpenModel
    system: Generation
    made: str
    options: Mapping[str, int | str]

    @property
    def model(self) -> ModelInfo:
        return self.asked.info

    @cached_property
    def named(self) -> str:
        """The column of the inputs."""
        return _COLUMNS[self.system.example_kind]

    @cached_property
    def columns(self) -> Columns:
        sure: Mapping[str, type] = {"sure": bool} if self.model.threshold else {}
        columns = {self.named: str, self.made: str, **sure, "score": float, "warning": str}
        return {**columns, "error": str, "model": str, "version": str}

    def close(self) -> None:
        self.asked.close()

    def rows(self, names: Sequence[str]) -> list[Row]:
        """One for each; what cannot be used has a reason, and any other failure is raised."""
        read = [self._read(name) for name in names]
        said = iter(self._said([each for each in read if not isinstance(each, Exception)]))
        return [
            self._row(name, *((each, "") if isinstance(each, Exception) else next(said)))
            for name, each in zip(names, read, strict=True)
        ]

    def _read(self, name: str) -> tuple[bytes, Tensors] | ValueError:
        """An input as it is and as the model takes it, or what is wrong with it."""
        try:
            example = _READ[self.system.example_kind](name)
            return example, self.system.request_inputs(example, self.model, self.options)
        except ValueError as exc:
            return exc

    def _said(self, read: Sequence[tuple[bytes, Tensors]]) -> list[_Said]:
        if not read:
            return []
        inputs = [each for _, each in read]
        try:
            outputs, version = self.asked.ask(
                {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}
            )
        except InvalidRequest as exc:
            if len(read) > 1:  # which of them is it?
                return [found for each in read for found in self._said([each])]
            return [(exc, "")]
        return [
            (self._answer(example, {name: each[row : row + 1] for name, each in outputs.items()}), version)
            for row, (example, _) in enumerate(read)
        ]

    def _answer(self, example: bytes, outputs: Tensors) -> GeneratedText:
        answer = self.system.generated(outputs, self.model)
        return (
            self.system.with_warning(example, answer) if isinstance(self.system, WarnsOfAnswers) else answer
        )

    def _row(self, name: str, answer: GeneratedText | Exception, version: str) -> Row:
        found: dict[str, Any] = {
            self.named: as_text(name),
            "model": self.model.name,
            "version": version or None,
        }
        if isinstance(answer, GeneratedText):
            found |= {self.made: answer.text, "score": answer.score, "warning": answer.warning or None}
            found["sure"] = self.model.is_sure(answer)
        else:
            found["error"] = printable(str(answer))
        return {column: found.get(column) for column in self.columns}


def read_photo(path: str) -> bytes:
    """Raise ValueError where it cannot be read, or is certainly not a picture."""
    try:
        data = read_input(path, _MOST_BYTES)
    except OSError as exc:
        raise ValueError(f"it cannot be read: {exc.strerror or exc}") from exc
    look(data)
    return data


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


_READ: Final[Mapping[ExampleKind, Callable[[str], bytes]]] = {"text": _encoded, "picture": read_photo}
_COLUMNS: Final[Mapping[ExampleKind, str]] = {"text": "text", "picture": "path"}
