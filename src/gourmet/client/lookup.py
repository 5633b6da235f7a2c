"""The servers that an address stands for: several where its host is a name with several IPs, as of a headless
Service, and others from one moment to the next.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Final

from gourmet.client.address import Address
from gourmet.client.transport import Transport

# Between two lookups of a name.
EVERY_S: Final = 5.0


def look_up(host: str) -> tuple[str, ...]:
    """The IPs of a name; none where that is not known now.

    They are of one family, the one that this machine prefers: a server with one of each would count twice.
    """
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return tuple(sorted({str(where[0]) for family, *_, where in found if family == found[0][0]}))
    return ()


def each_server(addresses: str) -> list[str]:
    """Those that `addresses`, with commas between them, stand for now."""
    found = []
    for each in Address.each(addresses):
        found += [str(each.at(ip)) for ip in (look_up(each.host) if each.is_looked_up else ()) or ("",)]
    return found


class FoundServers:
    """A transport to each server; `make` makes it, of the address at a place among `addresses`, and of an IP.

    Without an IP that is the name itself: of an address with a single server, and until it was looked up.
    """

    def __init__(self, addresses: Sequence[Address], make: Callable[[int, str], Transport]) -> None:
        self._hosts = [each.host if each.is_looked_up else "" for each in addresses]
        self._make = make
        self._ips: list[tuple[str, ...]] = [("",) for _ in addresses]
        self._made: dict[tuple[int, str], Transport] = {}

    @property
    def may_change(self) -> bool:
        return any(self._hosts)

    def known(self) -> list[Transport]:
        """Those that are known; one that was there before is the same as before."""
        keys = [(place, ip) for place, ips in enumerate(self._ips) for ip in ips]
        self._made = {key: self._made.get(key) or self._make(*key) for key in keys}
        return list(self._made.values())

    def now(self) -> list[Transport]:
        """The same, after looking their names up; one that cannot be looked up keeps those of before."""
        for place, host in enumerate(self._hosts):
            if found := host and look_up(host):
                self._ips[place] = found if len(found) > 1 else ("",)
        return self.known()
