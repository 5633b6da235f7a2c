"""The log of a run: a line of JSON an epoch, and the same as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from gourmet.runtime.files import written_aside
from gourmet.training.curves import curves

LOG: Final = "log.jsonl"
PICTURE: Final = "log.svg"


class EpochLog:
    """Lines about epochs, in a file that is rewritten whole so that it never ends in half a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[dict[str, Any]] = []

    def open(self, keep: int) -> None:
        """Begin with the first `keep` lines of what is there: a resumed run repeats none."""
        if keep:
            text = (self.folder / LOG).read_text(encoding="utf-8")
            self.lines = [json.loads(line) for line in text.splitlines()][:keep]

    def add(self, line: dict[str, Any]) -> None:
        """Log an epoch."""
        self.lines.append(line)
        with written_aside(self.folder / LOG) as aside:
            aside.write_text("".join(json.dumps(each) + "\n" for each in self.lines), encoding="utf-8")
        with written_aside(self.folder / PICTURE) as aside:
            aside.write_text(curves(self.lines), encoding="utf-8")
