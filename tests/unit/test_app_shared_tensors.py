"""Inputs in shared memory: where they may be tried, and what becomes of the file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import shared_tensors
from app.shared_tensors import SharedInput, may_share


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("triton:8000", False),
        ("10.0.0.7:8000", False),
    ],
)
def test_memory_is_shared_with_a_triton_of_this_machine_only(url: str, may: bool) -> None:
    assert may_share(url) is may


class Opening:
    """Opens a region as Triton does, or refuses to."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.refusal = refusal
        self.path = Path()

    def register_system_shared_memory(self, name: str, key: str, nbytes: int) -> None:
        self.path = shared_tensors._FOLDER / key.lstrip("/")
        assert self.path.name == name
        assert self.path.stat().st_size == nbytes
        assert self.path.stat().st_mode & 0o077 == 0  # nobody else's business
        if self.refusal:
            raise self.refusal
        with self.path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ)


@pytest.mark.parametrize("values", [np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.ones(7, np.uint8)])
def test_what_is_put_there_is_what_is_read_there_and_no_file_stays(values: Any) -> None:
    opening, shared = Opening(), SharedInput(values.nbytes)
    shared.register(opening)
    assert not opening.path.exists()
    shared.put(values)
    assert opening.memory[:] == values.tobytes()
    shared.put(values[::-1])
    assert opening.memory[:] == values[::-1].tobytes()


def test_a_triton_that_cannot_open_it_leaves_no_file_either() -> None:
    opening = Opening(RuntimeError("no such key"))
    with pytest.raises(RuntimeError, match="no such key"):
        SharedInput(100).register(opening)
    assert not opening.path.exists()
