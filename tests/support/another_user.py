"""Run code as another user of this machine."""

from __future__ import annotations

from typing import Final

NOBODY: Final = 65534
