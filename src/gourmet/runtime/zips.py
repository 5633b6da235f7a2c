"""Somebody's zips: opened without waiting, and no part of one read further than a bound.

Standard library only: packages are opened with this inside Triton.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gourmet.runtime.bounded_reading import MAX_WEIGHTS, in_short, open_regular

# Of the list of parts, which takes ten times as much memory as it is long; enough for 200,000 photos.
_MOST_OF_A_LIST: Final = 16 << 20


class _Bounded(io.BufferedReader):
    """zipfile reads the list of parts at once, however long that says it is."""

    most = _MOST_OF_A_LIST

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.most:
            raise ValueError(f"its list of parts has more than {self.most >> 20} MB")
        return super().read(size)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """OSError, or ValueError, where it cannot be opened, and where a part of it is damaged."""
    with (
        damage_said(),
        open_regular(path, MAX_WEIGHTS) as file,
        _Bounded(file.raw) as bounded,  # type: ignore[attr-defined]
        zipfile.ZipFile(bounded) as archive,
    ):
        bounded.most = sys.maxsize
        yield archive


@contextlib.contextmanager
def damage_said() -> Iterator[None]:
    """Within, what is wrong with a zip or a part of it is a ValueError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as exc:
        raise ValueError(in_short(exc)) from exc  # encrypted, or packed otherwise: RuntimeError


def part(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    """What is packed under this name, whatever size it says it has."""
    with damage_said(), archive.open(name) as packed:
        content = packed.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it unpacks to more than {max_bytes >> 20} MB")
    return content


def unpacked_parts(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """All parts of a zip that packs nothing; ValueError where they are more than its file has."""
    parts = archive.infolist()
    if any(each.compress_type or each.file_size != each.compress_size for each in parts):
        raise ValueError("parts of it are packed, and none of ours are")
    # Many names may stand for the same bytes.
    if sum(each.file_size for each in parts) > os.fstat(archive.fp.fileno()).st_size:  # type: ignore[union-attr]
        raise ValueError("its parts have more bytes than the file")
    return parts
