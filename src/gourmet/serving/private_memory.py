"""Keeps other users of the machine from Triton's shared memory, which holds the photos of its last requests.

Triton's Python backend makes a region for each of its processes by Boost, which opens it with the mode 0644
and then sets that mode again by fchmod, which no umask holds back. To change it afterwards would be late:
anyone may have opened the region by then. So Triton is started with a umask, and under a filter of system
calls by which an fchmod to 0644 is not permitted, which Boost does not look at.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import Final

UMASK: Final = 0o077
_REFUSED_MODE: Final = 0o644
# By processor: its number in audit.h, and those of the calls fchmod and seccomp.
_NUMBERS: Final = {"x86_64": (0xC000003E, 91, 317), "aarch64": (0xC00000B7, 52, 277)}
_PR_SET_NO_NEW_PRIVS: Final = 38
_SET_MODE_FILTER: Final = 1
# Older kernels otherwise slow down every computation under a filter, against Spectre.
_FLAG_SPEC_ALLOW: Final = 4
# Instructions of the filter, linux/bpf_common.h, and where in struct seccomp_data the values lie.
_LOAD: Final = 0x20
_SKIP_UNLESS_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_CALL_AT: Final = 0
_PROCESSOR_AT: Final = 4
_SECOND_ARGUMENT_AT: Final = 24
_ALLOW: Final = 0x7FFF0000
_FAIL: Final = 0x00050000

_libc = ctypes.CDLL(None, use_errno=True)
# Made before a fork, after which as little as possible is to be done.
_processor, _fchmod, _seccomp = _NUMBERS.get(platform.machine(), (0, 0, 0))
# Each is its code, how many to skip if so and if not, and a value (struct sock_filter).
_steps = [
    (_LOAD, 0, 0, _PROCESSOR_AT),
    (_SKIP_UNLESS_EQUAL, 0, 5, _processor),
    (_LOAD, 0, 0, _CALL_AT),
    (_SKIP_UNLESS_EQUAL, 0, 3, _fchmod),
    (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
    (_SKIP_UNLESS_EQUAL, 0, 1, _REFUSED_MODE),
    (_RETURN, 0, 0, _FAIL | errno.EPERM),
    (_RETURN, 0, 0, _ALLOW),
]
_instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _steps))
_program = struct.pack("HP", len(_steps), ctypes.addressof(_instructions))  # struct sock_fprog


def keep_modes() -> None:
    """Have this process and its children fail to set the mode 0644 by fchmod; there is no way back.

    Where the kernel does not allow that, nothing happens: see `TritonServer.exposed`.
    """
    if _seccomp:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _libc.syscall(_seccomp, _SET_MODE_FILTER, _FLAG_SPEC_ALLOW, _program)
