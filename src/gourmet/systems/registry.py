"""Which systems live in this house, found by looking: a folder with a contract.py is a system.

A system's rooms are modules of its folder (`contract`, `data`, `network`, `train`, `export`, …).
They are imported one at a time and only when a verb needs them, so that asking for labels does not
load torch.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from gourmet.errors import GourmetError

_HERE = Path(__file__).parent


class UnknownSystem(GourmetError):
    """A name that is no folder of gourmet/systems."""


def names() -> tuple[str, ...]:
    """The names of all systems, sorted."""
    return tuple(sorted(path.parent.name for path in _HERE.glob("*/contract.py")))


def room(system: str, module: str) -> ModuleType:
    """Import one room of a system, as in `room("food11", "contract")`."""
    if system not in names():
        raise UnknownSystem(f"there is no system {system!r}; there is {', '.join(names())}")
    if not (_HERE / system / f"{module}.py").exists():
        raise UnknownSystem(f"the system {system!r} has no {module}.py, so this verb does not apply to it")
    return importlib.import_module(f"gourmet.systems.{system}.{module}")
