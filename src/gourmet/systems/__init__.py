"""The systems: a folder of this package each, or of one of those that GOURMET_SYSTEMS names."""

import os
from pathlib import Path
from typing import Final

FOLDERS_ENV: Final = "GOURMET_SYSTEMS"


def folders() -> tuple[Path, ...]:
    """Where systems are looked for: this package's folder, and those of the environment."""
    for folder in filter(None, os.environ.get(FOLDERS_ENV, "").split(os.pathsep)):
        # The import system then finds what lies there as gourmet.systems.<name>.
        if (absolute := str(Path(folder).absolute())) not in __path__:
            __path__.append(absolute)
    return tuple(map(Path, __path__))


# Triton's Python models import their contract and nothing that would look for it.
folders()
