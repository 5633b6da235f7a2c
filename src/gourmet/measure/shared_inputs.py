"""Inputs in memory that Triton reads itself, so that they are not sent with every request."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gourmet.client.errors import TritonRefused
from gourmet.client.tensors import raw
from gourmet.client.triton import Triton
from gourmet.measure.inputs import InputRows
from gourmet.serving.connect import connect
from gourmet.serving.waiting import wait_until

REGION: Final = f"gourmet_bench_{os.getpid()}"
Regions = Mapping[tuple[str, int], tuple[int, int]]  # (input, row) -> offset and size


@contextlib.contextmanager
def in_shared_memory(url: str, rows: InputRows, batch: int) -> Iterator[Regions]:
    """The rows in a region that Triton reads; the first rows follow the last once more, for batches."""
    order = [*range(len(rows)), *(at % len(rows) for at in range(batch - 1))]
    places: dict[tuple[str, int], tuple[int, int]] = {}
    held = bytearray()
    for name, at in itertools.product((given.name for given in rows.inputs), order):
        row = raw(rows.values[name][at])
        places.setdefault((name, at), (len(held), len(row)))
        held += row
    # POSIX shared memory is a file here.
    path = Path("/dev/shm") / REGION
    try:
        path.write_bytes(held)
        with connect(url) as triton:
            triton.register(REGION, {"key": f"/{REGION}", "offset": 0, "byte_size": len(held)})
            try:
                yield places
            finally:
                wait_until(lambda: _unregistered(triton), 5, "Triton did not let go of the inputs")
    finally:
        path.unlink(missing_ok=True)


def _unregistered(triton: Triton) -> bool:
    """Whether Triton let go of the region, which it holds for a moment after its last answer."""
    try:
        triton.unregister(REGION)
    except TritonRefused as exc:
        if "in use" not in exc.reason:
            raise
        return False
    return True
