"""Decoders with a planted fault, in every Python that a test starts: see `plant`."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import psutil
from PIL import Image

# Loading a GIF does what its comment says. The first holds the interpreter's lock, so that nothing else of
# the process runs, as a library in C does that never returns.
_PLANTED = """
import ctypes, os, re, time
from PIL import GifImagePlugin

load = GifImagePlugin.GifImageFile.load

def planted(self):
    what = self.info.get("comment", b"")
    ctypes.CDLL(None).prctl(15, what, 0, 0, 0)  # the process's name: see busy_with
    if what == b"never returns":
        re.match("(a+)+$", "a" * 60 + "b")
    if what == b"sleeps":
        time.sleep(1000)
    if what == b"crashes":
        os.abort()
    if what == b"takes a gigabyte":
        bytearray(1_000_000_000)
    if what == b"writes a file":
        with open(os.path.join(os.path.dirname(__file__), "written"), "wb") as file:
            file.write(b"x")
    return load(self)

GifImagePlugin.GifImageFile.load = planted
"""


def plant(folder: Path) -> dict[str, str]:
    """Return the environment of a Python whose processes have the fault."""
    (folder / "sitecustomize.py").write_text(_PLANTED)
    return {"PYTHONPATH": str(folder)}


def busy_with(comment: str, *parents: psutil.Process) -> list[int]:
    """Return the processes below these, this one by default, that decode or decoded such a GIF last."""
    busy = []
    for parent in parents or [psutil.Process()]:
        for child in parent.children(recursive=True):
            with contextlib.suppress(OSError):  # it ended since it was listed
                if Path(f"/proc/{child.pid}/comm").read_text().strip() == comment:
                    busy.append(child.pid)
    return busy


def gif(comment: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("P", (64, 64)).save(buffer, "GIF", comment=comment.encode())
    return buffer.getvalue()
