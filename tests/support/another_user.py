"""What another user of this machine may do, tried as one."""

from __future__ import annotations

from typing import Final

NOBODY: Final = 65534
