"""What a scenario has measured so far, in a folder, so that a run that was stopped goes on from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from gourmet.errors import UsageError
from gourmet.measure.raw_onnx import LayoutResult
from gourmet.measure.results import Point, Rejection

_PLAN: Final = "plan.json"


@dataclass(frozen=True)
class Part:
    """What came of one arm in one turn; `beside` is what was measured without a server before it."""

    points: tuple[Point, ...]
    refused: tuple[Rejection, ...]
    beside: tuple[LayoutResult, ...] = ()


class KeptPoints:
    """The parts of a run in `folder`; nothing is kept without one."""

    def __init__(self, folder: Path | None, plan: Sequence[Any]) -> None:
        """`plan` is what makes it that run; raises UsageError where the folder holds another."""
        self._folder = folder
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        wanted = json.loads(json.dumps(plan, default=str))
        path = folder / _PLAN
        if path.exists() and json.loads(path.read_text(encoding="utf-8")) != wanted:
            raise UsageError(
                f"{folder} holds another run, of other options: name another folder, or remove it"
            )
        path.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")

    def get(self, place: int) -> Part | None:
        """The part at this place of the plan, if it was measured."""
        path = self._path(place)
        if path is None or not path.exists():
            return None
        return TypeAdapter(Part).validate_json(path.read_bytes())

    def keep(self, place: int, part: Part) -> None:
        if path := self._path(place):
            path.write_text(json.dumps(asdict(part), ensure_ascii=False) + "\n", encoding="utf-8")

    def _path(self, place: int) -> Path | None:
        return self._folder and self._folder / f"{place:04}.json"
