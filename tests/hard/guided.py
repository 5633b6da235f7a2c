"""Bytes that are changed by what they reach, into what reads them in Python before any decoder does.

    python guided.py TARGET COUNTS CORPUS [-max_total_time=60 and other options of libFuzzer]

libFuzzer, by atheris, keeps each input that reaches something new and goes on from there; it begins with the
files in CORPUS, and ends the process, so each target has one. A target says whether what it tries let the
bytes pass. It may raise nothing, and take neither two seconds nor 300 MB: else the input is kept as a file.
COUNTS is a file for what became of them (`Counts`).
"""

from __future__ import annotations

import io
import mmap
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

import atheris

# Not Pillow, whose mistakes become a refusal. `multipart` reads for app.admission.uploads.
with atheris.instrument_imports(include=["app", "gourmet", "multipart"]):
    from werkzeug.exceptions import RequestEntityTooLarge

    from app.admission.uploads import MAX_OTHER_PARTS
    from app.core.http import FormParser
    from gourmet.pictures import header
    from gourmet.pictures.decode import PictureError, from_base64, identify

MOST_KB: Final = 300_000
OPTIONS: Final = ("-timeout=2", f"-rss_limit_mb={MOST_KB // 1000 * 3}", "-max_len=16384")
_LARGEST_UPLOAD: Final = 10_000_000
_form: Final = FormParser(max_form_memory_size=500_000, max_form_parts=MAX_OTHER_PARTS)


def headers(data: bytes) -> bool:
    """What is read of a picture before Pillow: segments and scans of a JPEG, chunks of a PNG."""
    try:
        head = header.read(data)
    except PictureError as exc:
        return _refused(exc.code and str(exc))
    assert len(head.data) <= len(data)
    assert head.scans >= 0
    return True


def opened(data: bytes) -> bool:
    """What is asked of a picture's header, on the way that uploads take."""
    return _identified(from_base64(data))


def repeated(data: bytes) -> bool:
    """A file of the largest upload's size, whose end is repeated: what costs time for each byte does here."""
    length = 1 + (data[-1] if data else 0)
    body = data[:-1] or b"\0"
    piece = body[-length:]
    large = body + piece * ((_LARGEST_UPLOAD - len(body)) // len(piece))
    passed = headers(large)
    return _identified(large) and passed


def _identified(picture: bytes) -> bool:
    try:
        info = identify(picture)
    except PictureError as exc:
        return _refused(exc.code and str(exc))
    assert info.width > 0
    assert info.height > 0
    return True


def _refused(reason: str) -> bool:
    assert reason
    return False


class _Slowly(io.BytesIO):
    """A body that comes in pieces of 61 bytes."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(61)


def form(data: bytes) -> bool:
    """A multipart form, whose boundary is what its first line says; in one piece and in many.

    What is malformed may be refused in one way alone: `multipart` looks for bare line ends at the end of each
    piece, and takes the beginning of one for the beginning of the form as long as it found no boundary.
    """
    at_once, in_pieces = _form_read(io.BytesIO(data), data), _form_read(_Slowly(data), data)
    if at_once and in_pieces:
        assert at_once == in_pieces
    return bool(at_once)


def _form_read(stream: io.BytesIO, data: bytes) -> list[tuple[str, str | bytes]]:
    boundary = data[2:].partition(b"\r\n")[0].decode("latin-1")
    try:
        _, fields, files = _form.parse(stream, "multipart/form-data", len(data), {"boundary": boundary})
    except RequestEntityTooLarge:
        return []
    contents = [(name, file.stream.read()) for name, file in files.items(multi=True)]
    assert all(content in data for _, content in contents)
    return [*fields.items(multi=True), *contents]


@atheris.instrument_func
def planted(data: bytes) -> bool:
    """Three mistakes that must be found, so that it is known that others would be."""
    if data == b"\xff\xd8bug":
        raise LookupError("planted")
    while data == b"\xff\xd8slow":
        pass
    return len(bytes(400_000_000 if data == b"\xff\xd8huge" else 1)) == 1


TARGETS: Final = {one.__name__: one for one in (headers, opened, repeated, form, planted)}


class Counts:
    """How many passed, how many were refused, the most expensive's CPU in ns and the peak in kB.

    In a file that is mapped into memory, since nothing of this process runs after the last input.
    """

    BYTES: Final = 4 * 8

    def __init__(self, file: Path) -> None:
        with file.open("r+b") as opened_file:
            self._values = memoryview(mmap.mmap(opened_file.fileno(), self.BYTES)).cast("Q")
        self._first_kb = _peak_kb()

    def of(self, target: Callable[[bytes], bool]) -> Callable[[bytes], None]:
        def counted(data: bytes) -> None:
            began = time.thread_time_ns()
            passed = target(data)
            values = self._values
            values[0 if passed else 1] += 1
            values[2] = max(values[2], time.thread_time_ns() - began)
            values[3] = _peak_kb() - self._first_kb
            if values[3] > MOST_KB:
                raise MemoryError(f"it took {values[3] / 1000:.0f} MB")

        return counted


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, counts, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *OPTIONS, *options], Counts(Path(counts)).of(TARGETS[name]))
    atheris.Fuzz()
