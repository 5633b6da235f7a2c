"""Waiting for what will be so in a moment."""

from __future__ import annotations

from collections.abc import Callable

from gourmet.stack.processes import wait_until


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    wait_until(condition, seconds, "it did not come to hold", poll_s=0.01)
