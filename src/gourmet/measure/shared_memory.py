"""Put inputs into memory that a Triton on this machine reads too, to save time in the client."""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gourmet.client.errors import TritonRefused
from gourmet.client.tensors import SharedTensor, datatype_of, raw, raw_bytes
from gourmet.client.triton import Triton
from gourmet.contracts import Array
from gourmet.serving.connect import connect
from gourmet.serving.waiting import wait_until

_FOLDER: Final = Path("/dev/shm")


@contextmanager
def shared_memory(url: str) -> Iterator[Callable[[Array], SharedTensor]]:
    """Yield a function that puts an input into memory that the Triton at `url` reads."""
    placed: list[tuple[str, mmap.mmap]] = []
    with connect(url) as triton:

        def place(values: Array) -> SharedTensor:
            region = f"bench-{uuid.uuid4().hex}"
            placed.append((region, _filled(triton, region, raw(values))))
            return SharedTensor(region, datatype_of(values), values.shape, raw_bytes(values))

        def let_go() -> bool:
            try:
                while placed:
                    triton.unregister(placed[-1][0])
                    placed.pop()
            except TritonRefused as exc:
                if "in use" not in exc.reason:  # for a moment after its last answer
                    raise
            return not placed

        try:
            yield place
        finally:
            wait_until(let_go, 5, "Triton did not let go of the inputs")


def _filled(triton: Triton, region: str, content: bytes) -> mmap.mmap:
    """Return memory with `content` that Triton has opened; remove its file."""
    path = _FOLDER / region
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(file, 0, len(content))
        memory = mmap.mmap(file, len(content))
        memory[:] = content
        triton.register(region, f"/{region}", len(content))
    finally:
        os.close(file)
        path.unlink()
    return memory
