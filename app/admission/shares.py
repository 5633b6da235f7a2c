"""How places are shared among clients: nobody has more than three times as many as are left free.

That is three quarters of them for one client alone and less the more there are, so that there is always some
room for the next. A client is an address, or of IPv6 the /64 that a subscriber is given. Upload slots lock,
and nothing else does.
"""

from __future__ import annotations

import functools
import ipaddress
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from app.core.errors import Overloaded

_TIMES_THE_FREE: Final = 3
T = TypeVar("T")


@functools.lru_cache(4096)
def client_of(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # of a Unix socket, or a proxy's "unknown"
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or f"{int(found) >> 64:x}/64")


def is_fair(held: int, free: int, more: int = 1) -> bool:
    """Whether who has `held` may have `more` of those that are free."""
    return held + more <= _TIMES_THE_FREE * (free - more + 1)


class Shares:
    """So many places, and who has how many of them."""

    def __init__(self, places: int) -> None:
        self.free = places
        self._held: dict[str, int] = {}

    def allows(self, client: str, more: int = 1) -> bool:
        return is_fair(self._held.get(client, 0), self.free, more)

    def take(self, client: str, more: int = 1) -> None:
        self.free -= more
        self._held[client] = self._held.get(client, 0) + more

    def give_back(self, client: str, count: int = 1) -> None:
        self.free += count
        left = self._held.pop(client, 0) - count
        if left:
            self._held[client] = left


class Lines(Generic[T]):
    """A line for each client; they are served in turn."""

    def __init__(self) -> None:
        self._of: dict[str, deque[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, client: str) -> int:
        return len(self._of.get(client, ()))

    def before(self, client: str) -> int:
        """How many are served before the next who comes from `client`."""
        mine = self.of(client)
        others = (len(line) for name, line in self._of.items() if name != client)
        return mine + sum(min(other, mine + 1) for other in others)

    def add(self, client: str, item: T) -> None:
        self._of.setdefault(client, deque()).append(item)
        self._count += 1

    def next(self, allows: Callable[[str], bool]) -> tuple[str, T] | None:
        """Take out the first whose client is allowed another; that client is the last to be asked again."""
        for client, line in self._of.items():
            if allows(client):
                item = line.popleft()
                self._count -= 1
                del self._of[client]
                if line:
                    self._of[client] = line
                return client, item
        return None

    def remove(self, client: str, item: T) -> bool:
        """Whether it was there."""
        line = self._of.get(client, deque[T]())
        if item not in line:
            return False
        line.remove(item)
        self._count -= 1
        if not line:
            del self._of[client]
        return True

    def __iter__(self) -> Iterator[T]:
        return (item for line in self._of.values() for item in line)


class UploadSlots:
    """Uploads that are being received: so many, and so many bytes in memory with those that wait.

    Both are shared (shares.py). What counts is what has arrived, and not what a client says will come.
    """

    def __init__(self, uploads: int, held_bytes: int) -> None:
        self._lock = threading.Lock()
        self._uploads = Shares(uploads)
        self._most_bytes = held_bytes
        self._bytes = Shares(held_bytes)

    def enter(self, client: str, said: int, floor: int = 0) -> None:
        """Begin an upload that is said to have so many bytes, which could be held; `floor` of them are."""
        with self._lock:
            if not self._uploads.allows(client):
                raise Overloaded("uploads")
            self._check(client, max(said, floor), 0)
            self._uploads.take(client)
            self._bytes.take(client, floor)

    def hold(self, client: str, nbytes: int, already: int) -> None:
        """`nbytes` more of an upload have arrived, of which `already` so many are held."""
        with self._lock:
            self._check(client, nbytes, already)
            self._bytes.take(client, nbytes)

    def _check(self, client: str, nbytes: int, already: int) -> None:
        is_alone = self._bytes.free + already == self._most_bytes
        if not (is_alone or self._bytes.allows(client, nbytes)):
            raise Overloaded("memory")

    def received(self, client: str) -> None:
        with self._lock:
            self._uploads.give_back(client)

    def forget(self, client: str, nbytes: int) -> None:
        with self._lock:
            self._bytes.give_back(client, nbytes)


class Upload:
    """What one request has of the slots."""

    def __init__(self, slots: UploadSlots, client: str, said: int, floor: int) -> None:
        slots.enter(client, said, floor)
        self._slots = slots
        self._client = client
        self._held = floor
        self.is_coming = True

    def hold(self, nbytes: int) -> None:
        self._slots.hold(self._client, nbytes, self._held)
        self._held += nbytes

    def received(self) -> None:
        self.is_coming = False
        self._slots.received(self._client)

    def forget(self) -> None:
        self._slots.forget(self._client, self._held)
