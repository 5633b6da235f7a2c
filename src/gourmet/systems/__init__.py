"""The systems: a folder each in this package, in those that GOURMET_SYSTEMS names, or in the user's own."""

import os
from pathlib import Path
from typing import Final

from gourmet.served.files import own_systems

FOLDERS_ENV: Final = "GOURMET_SYSTEMS"


def folders() -> tuple[Path, ...]:
    """Return the folders of systems: this package's, those of the environment, and the user's own.

    New ones are made in the second, which is the user's own unless the environment names others.
    """
    named = filter(None, os.environ.get(FOLDERS_ENV, "").split(os.pathsep))
    # The import system then finds what lies there as gourmet.systems.<name>.
    __path__[1:] = dict.fromkeys(str(Path(folder).absolute()) for folder in (*named, str(own_systems())))
    return tuple(map(Path, __path__))


# Triton's Python models import their contract and nothing that would look for it.
folders()
