"""Inputs in shared memory: where they may be tried, and what becomes of the file."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from app.triton import shared_memory
from app.triton.shared_memory import SharedInput, may_share


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


def opened(region: dict[str, Any]) -> mmap.mmap:
    """The memory, as Triton opens it."""
    path = shared_memory._FOLDER / region["key"].lstrip("/")
    assert path.stat().st_size == region["byte_size"]
    assert path.stat().st_mode & 0o077 == 0  # nobody else's business
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), region["byte_size"], prot=mmap.PROT_READ)


def left_behind(name: str) -> bool:
    return (shared_memory._FOLDER / name).exists()


@pytest.mark.parametrize("values", [np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.ones(7, np.uint8)])
def test_what_is_put_there_is_what_is_read_there_and_no_file_stays(values: Any) -> None:
    found: list[mmap.mmap] = []
    shared = SharedInput(values.nbytes, lambda _, region: found.append(opened(region)))
    (memory,) = found
    assert not left_behind(shared.name)
    shared.put(values)
    assert memory[:] == values.tobytes()
    shared.put(values[::-1])
    assert memory[:] == values[::-1].tobytes()


def test_a_triton_that_cannot_open_it_leaves_no_file_either() -> None:
    offered: list[str] = []

    def refuse(name: str, _: dict[str, Any]) -> None:
        offered.append(name)
        assert left_behind(name)
        raise RuntimeError("no such key")

    with pytest.raises(RuntimeError, match="no such key"):
        SharedInput(100, refuse)
    assert not left_behind(offered[0])
