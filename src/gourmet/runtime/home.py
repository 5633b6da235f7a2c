"""Where what a user makes lies: systems that are data, and the models that serve them, outside the code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HOME_ENV: Final = "GOURMET_HOME"
_USUAL: Final = (("XDG_DATA_HOME", "gourmet"), ("HOME", ".local/share/gourmet"))
_WITHOUT_HOME: Final = Path("/var/lib/gourmet")


def home() -> Path:
    """GOURMET_HOME, or the user's folder of data; it need not be there."""
    if given := os.environ.get(HOME_ENV):
        return Path(given).absolute()
    for name, below in _USUAL:
        # Relative to a folder that anyone writes to, such as the web app's, it would be somebody else's.
        if (folder := Path(os.environ.get(name, ""))).is_absolute():
            return folder / below
    return _WITHOUT_HOME


def own_systems() -> Path:
    return home() / "systems"


def own_models() -> Path:
    """The user's model repository, which `gourmet up` serves beside the checkout's."""
    return home() / "models"
