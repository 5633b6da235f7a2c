"""Presets for glibc's malloc: when it returns freed memory to the kernel.

By default, glibc maps a large block when a program allocates it and unmaps the block when it is freed. A
program that computes the same layers again and again then pays for clearing and mapping the same pages each
time. A program that needs a large block only now and then should return it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from typing import Final

# Parameters of mallopt(3), in bytes.
_TRIM_THRESHOLD: Final = -1  # free memory at the heap's end that is kept
_TOP_PAD: Final = -2  # extra memory by which the heap grows
_MMAP_THRESHOLD: Final = -3  # blocks of this size and larger are mapped alone, and unmapped when freed

# Measured: a training step of MobileNetV2 at 64 pixels takes a third less time; batches of small image
# operations are several times faster.
TRAINING: Final = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1}
# Measured, TorchScript at batch 16 on one thread: 14 → 9 ms a photo. Bounded, since a server runs for months.
SERVING: Final = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: 512 << 20, _TOP_PAD: 64 << 20}
# A web worker decodes pictures in many threads. glibc raises its threshold with every large block that is
# freed, so each thread would keep the memory of the largest picture that it ever decoded. The memory of a
# small picture is kept: returning it every time cost an eighth of the CPU time of a decoded photo.
WEB: Final = {_MMAP_THRESHOLD: 8 << 20, _TRIM_THRESHOLD: 4 << 20, _TOP_PAD: 1 << 20}


def give_back() -> None:
    """Return freed memory to the kernel now, after a start that needed more than the work that follows."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def use(preset: Mapping[int, int]) -> None:
    """Apply a preset to this process's malloc. Other C libraries than glibc are left as they are."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in preset.items():
            mallopt(parameter, value)
