"""The connections of a worker that no thread is at work on."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

C = TypeVar("C")


class Crowd(Generic[C]):
    """Connections by their peer's address, oldest first, and until when each may stay."""

    def __init__(self) -> None:
        self._of: dict[str, dict[C, float]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, peer: str, connection: C, until: float = math.inf) -> None:
        self._of.setdefault(peer, {})[connection] = until
        self._count += 1

    def set_until(self, peer: str, connection: C, until: float) -> None:
        self._of[peer][connection] = until

    def remove(self, peer: str, connection: C) -> None:
        mine = self._of[peer]
        del mine[connection]
        self._count -= 1
        if not mine:
            del self._of[peer]

    def oldest(self) -> C:
        """The oldest of the peer that has most, which is the one to go where there are too many."""
        peer = max(self._of, key=lambda each: len(self._of[each]))
        return next(iter(self._of[peer]))

    def late(self, now: float) -> list[C]:
        return [each for mine in self._of.values() for each, until in mine.items() if until <= now]

    def leave_by(self, until: float) -> None:
        """None may stay for longer than that, but for those that may stay for ever."""
        for mine in self._of.values():
            for connection, allowed in mine.items():
                if allowed != math.inf:
                    mine[connection] = min(allowed, until)
