"""Rows of what a model makes of texts or of pictures: a translation, a caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from gourmet.bulk.inputs import as_text
from gourmet.bulk.journal import Columns, Row
from gourmet.contracts import GeneratedText, ModelInfo
from gourmet.errors import printable

# To each example its answer or why there is none, and the version that said it.
AskExamples = Callable[[Sequence[Callable[[], bytes]]], Sequence[tuple[GeneratedText | Exception, str]]]


@dataclass(frozen=True)
class GeneratedRows:
    model: ModelInfo
    ask: AskExamples
    read: Callable[[str], bytes]  # raises ValueError
    named: str  # the column of the input
    made: str  # and that of the answer

    @cached_property
    def columns(self) -> Columns:
        sure: Mapping[str, type] = {"sure": bool} if self.model.threshold else {}
        told = {self.named: str, self.made: str, **sure, "score": float, "warning": str}
        return {**told, "error": str, "model": str, "version": str}

    def rows(self, names: Sequence[str]) -> list[Row]:
        """One for each; what cannot be used has a reason, and any other failure is raised."""
        said = self.ask([partial(self.read, name) for name in names])
        return [self._row(name, *each) for name, each in zip(names, said, strict=True)]

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
