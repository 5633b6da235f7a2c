"""Inputs for Triton in memory that both processes see, instead of in the body of a request.

A tensor that goes through a socket is copied six times on its way, in memory that two cores share with
the network that runs; a tensor that Triton finds in place is copied once. That needs a Triton
on this machine that can open what this user writes to /dev/shm; any other one is sent the bytes.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_FOLDER: Final = Path("/dev/shm")
# Below this, sending costs less than looking after a piece of memory.
LEAST_BYTES: Final = 16_384
# As much as is kept for each of the connections, of photos that Triton decodes.
MOST_TEXT_BYTES: Final = 4_000_000
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
# `gourmet up` locks Triton's shared memory and hands the app this key to it (gourmet.serving.api_keys).
KEY_ENV: Final = "TRITON_MEMORY_KEY"
KEY_HEADER: Final = "gourmet-memory-key"
# What Triton says of a region that it was never told of, as after a restart.
UNKNOWN_REGION: Final = "shared memory region"


def may_share(url: str) -> bool:
    """Whether the Triton at `url` (host:port) may be a process of this machine."""
    return url.rpartition(":")[0] in _LOOPBACK and os.access(_FOLDER, os.W_OK)


def memory_key() -> dict[str, str]:
    """The header that opens a Triton's locked shared memory, if there is a key to it."""
    key = os.environ.get(KEY_ENV)
    return {KEY_HEADER: key} if key else {}


class SharedInput:
    """One input's worth of memory; its file goes once Triton was told by `offer` and has opened it."""

    def __init__(self, nbytes: int, offer: Callable[[str, dict[str, Any]], object]) -> None:
        self.nbytes = nbytes
        self.name = f"web-{uuid.uuid4().hex}"
        path = _FOLDER / self.name
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file, 0, nbytes)
            self._memory = mmap.mmap(file, nbytes)
            offer(self.name, {"key": f"/{self.name}", "offset": 0, "byte_size": nbytes})
        finally:
            os.close(file)
            path.unlink()

    def put(self, values: npt.NDArray[Any]) -> None:
        here: npt.NDArray[Any] = np.frombuffer(self._memory, values.dtype, values.size)
        np.copyto(here.reshape(values.shape), values)
