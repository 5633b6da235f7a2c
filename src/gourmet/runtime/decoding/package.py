"""What a served model of text needs, in one file: graphs and tokenizer. The same content is the same file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError

FILE: Final = "model.zip"
_ALWAYS: Final = (1980, 1, 1, 0, 0, 0)


def write(path: Path, files: Mapping[str, bytes]) -> None:
    """Not compressed: weights hardly shrink, and it would be paid for at each start."""
    with zipfile.ZipFile(path, "w") as package:
        for name in sorted(files):
            package.writestr(zipfile.ZipInfo(name, _ALWAYS), files[name])


def read(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as package:
            return {name: package.read(name) for name in package.namelist()}
    except (OSError, zipfile.BadZipFile) as exc:
        raise GourmetError(
            f"{path} cannot be read: {exc}. Deploy the model again with `gourmet deploy`"
        ) from exc
