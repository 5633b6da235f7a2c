"""When glibc's malloc gives freed memory back to the kernel: presets, each with what was measured.

Left alone, glibc maps a large block when it is asked for and unmaps it when it is freed. What computes the
same layers again and again then pays for clearing and mapping the same pages each time; what holds a large
block once in a while is right to give it back.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from typing import Final

# Parameters of mallopt(3), in bytes.
_TRIM_THRESHOLD: Final = -1  # how much free memory at the heap's end is kept
_TOP_PAD: Final = -2  # how much more the heap grows by than was asked for
_MMAP_THRESHOLD: Final = -3  # blocks from here on are mapped one by one, and unmapped when freed

# A step of MobileNetV2 at 64 pixels takes a third less time, and batches of small image operations take
# several times less.
TRAINING: Final = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: (1 << 31) - 1}
# TorchScript at batch 16, on one thread: 9 ms a photo instead of 14. Bounded, since a server runs for months.
SERVING: Final = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: 512 << 20, _TOP_PAD: 64 << 20}
# A web worker decodes pictures in many threads. glibc raises its threshold with every large block that is
# freed, and the memory of the largest picture that each thread ever decoded would stay with that thread. What
# a small picture takes is kept: giving it back for each was an eighth of the CPU time of a decoded photo.
WEB: Final = {_MMAP_THRESHOLD: 8 << 20, _TRIM_THRESHOLD: 4 << 20, _TOP_PAD: 1 << 20}


def give_back() -> None:
    """What was freed, now: after a start that took more than what goes on."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def use(preset: Mapping[int, int]) -> None:
    """Set this process's malloc. Where there is another C library: nothing."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in preset.items():
            mallopt(parameter, value)
