"""When glibc's malloc gives freed memory back to the kernel: presets, each with what was measured.

Left alone, glibc maps a large block when it is asked for and unmaps it when it is freed. What computes the
same layers again and again then pays for clearing and mapping the same pages each time; what holds a large
block once in a while is right to give it back.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


@dataclass(frozen=True)
class Preset:
    """Bytes; None leaves glibc's own value."""

    mmap_threshold: int  # blocks from here on are mapped one by one, and unmapped when freed
    trim_threshold: int | None = None  # how much free memory at the heap's end is kept
    top_pad: int | None = None  # how much more the heap grows by than was asked for


# A step of MobileNetV2 at 64 pixels takes a third less time, and batches of small image operations take
# several times less.
TRAINING: Final = Preset(1 << 30, trim_threshold=(1 << 31) - 1)
# TorchScript at batch 16, on one thread: 9 ms a photo instead of 14. Bounded, since a server runs for months.
SERVING: Final = Preset(1 << 30, trim_threshold=512 << 20, top_pad=64 << 20)
# A web worker decodes pictures in many threads. glibc raises its threshold with every large block that is
# freed, and the memory of the largest picture that each thread ever decoded would stay with that thread. What
# a small picture takes is kept: giving it back for each was an eighth of the CPU time of a decoded photo.
WEB: Final = Preset(8 << 20, trim_threshold=4 << 20, top_pad=1 << 20)


def use(preset: Preset) -> None:
    """Set this process's malloc. Where there is another C library: nothing."""
    settings = {
        _M_MMAP_THRESHOLD: preset.mmap_threshold,
        _M_TRIM_THRESHOLD: preset.trim_threshold,
        _M_TOP_PAD: preset.top_pad,
    }
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in settings.items():
            if value is not None:
                libc.mallopt(parameter, value)
