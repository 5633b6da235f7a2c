"""Writes down, in any process, in which of our modules functions run, with the time of day.

Any process of a test's own begins it by `import walk` where WALK_FILE is set; each appends to that file.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
EVERY_S = 0.1
# A Triton of a test serves copies of the models.
_PLACES = {f"{ROOT / folder}/": f"{folder}/" for folder in ("app", "src")}
# Threads that work for no request.
_BESIDE = ("walk", "figures")
_seen: set[str] = set()


def begin(*own: Path) -> None:
    """Note from now on; the modules of the folders `own` count as ours too."""
    places = {f"{each}/": f"{each.name}/" for each in own} | _PLACES
    threading.Thread(target=_write, args=(places,), name="walk", daemon=True).start()
    threading.setprofile(_note)
    sys.setprofile(_note)


def _note(frame: FrameType, event: str, _: Any) -> None:
    if event == "call" and threading.current_thread().name not in _BESIDE:
        _seen.add(frame.f_code.co_filename)


def _write(places: dict[str, str]) -> None:
    while True:
        time.sleep(EVERY_S)
        found = {
            name + file.removeprefix(at)
            for file in set(_seen)
            for at, name in places.items()
            if file.startswith(at)
        }
        _seen.clear()
        with Path(os.environ["WALK_FILE"]).open("a") as lines:
            lines.writelines(f"{time.time()} {name}\n" for name in sorted(found))


def since(begun: float) -> list[str]:
    """The modules that were noted since then."""
    lines = (line.split(" ", 1) for line in Path(os.environ["WALK_FILE"]).read_text().splitlines())
    return sorted({name for at, name in lines if float(at) >= begun})
