"""Work that stands still until a test lets it go on, in whichever process it is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.eventually import eventually

from gourmet.bulk.journal import Row
from gourmet.bulk.run import answered
from gourmet.bulk.workers import in_processes


@dataclass(frozen=True)
class GatedWork:
    """Each process says in `folder` that it began, and waits for the file "go" there."""

    folder: Path
    requests: int = 1
    wants_processes: bool = True

    def open(self) -> GatedWork:
        return self

    def close(self) -> None:
        pass

    def rows(self, names: Sequence[str]) -> list[Row]:
        (self.folder / f"{os.getpid()}.pid").touch()
        eventually((self.folder / "go").exists, 60)
        return [{"name": name} for name in names]

    def workers(self) -> list[int]:
        return [int(each.stem) for each in self.folder.glob("*.pid")]


def main(folder: str) -> None:
    """A command that has work done until it is ended, and says so where that is Ctrl-C."""
    try:
        with in_processes(GatedWork(Path(folder)), 1) as (ask, how):
            list(answered(ask, ["a"], how))
    except KeyboardInterrupt:
        sys.stdout.write("stopped")
