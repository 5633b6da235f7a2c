"""Modules that somebody left where a program might look for its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_TRAP: Final = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\nraise ImportError\n"


def trap(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(_TRAP)
    return folder


def sprung(folder: Path) -> bool:
    return (folder / "imported").exists()
