"""Which servers an address with a name stands for, from one moment to the next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from support.eventually import eventually
from support.listener import Listen, http, listen
from support.tls import Certificates, TlsDoor

from gourmet.client import balancing, lookup
from gourmet.client import http as http_client
from gourmet.client.address import Address
from gourmet.client.balancing import BalancedTransport
from gourmet.client.deadline import Deadline
from gourmet.client.errors import TritonUnreachable
from gourmet.client.lookup import FoundServers, each_server
from gourmet.client.transport import Call, Reply
from gourmet.client.triton import Triton, transport

__all__ = ["listen"]
NAME = "triton.test"


@dataclass(eq=False)
class AnsweringServer:
    """A double of a way to a server, at a boundary of ours."""

    address: str
    asked: int = 0
    protocol: Literal["http", "grpc"] = "http"

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        self.asked += 1
        time.sleep(0.002)
        yield Reply(self.address)

    def close(self) -> None:
        pass


@dataclass
class KnownNames:
    """What names stand for now; a name that is not there cannot be looked up."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def look_up(self, host: str) -> tuple[str, ...]:
        self.asked[host] += 1
        return self.known.get(host, ())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> KnownNames:
    found = KnownNames()
    monkeypatch.setattr(lookup, "look_up", found.look_up)
    monkeypatch.setattr(balancing, "EVERY_S", 0.05)
    return found


def way(place: int, ip: str) -> AnsweringServer:
    return AnsweringServer(ip or f"by name {place}")


def over(*addresses: str) -> BalancedTransport:
    found = FoundServers([Address.of(each) for each in addresses], way)
    balanced = BalancedTransport(found.known())
    balanced.follow(found.now)
    return balanced


def answered(balanced: BalancedTransport, requests: int = 60) -> Counter[str]:
    """Many at a time: one after another, all would go to the server that was a little faster at first."""

    def ask(_: int) -> str:
        (reply,) = balanced.send(Call("infer", "food"), Deadline(5.0))
        assert reply is not None
        return str(reply.fields)

    with ThreadPoolExecutor(8) as clients:
        return Counter(clients.map(ask, range(requests)))


def test_a_name_is_spread_over_all_that_it_stands_for_and_followed(names: KnownNames) -> None:
    names.known[NAME] = ("10.0.0.1", "10.0.0.2")
    with closing(over(f"{NAME}:8000")) as balanced:
        eventually(lambda: set(answered(balanced)) == {"10.0.0.1", "10.0.0.2"})
        names.known[NAME] = ("10.0.0.2", "10.0.0.3")
        eventually(lambda: set(balanced.answering()) == {"10.0.0.2", "10.0.0.3"})
        eventually(lambda: set(answered(balanced)) == {"10.0.0.2", "10.0.0.3"})


def test_a_lookup_that_fails_keeps_what_is_known(names: KnownNames) -> None:
    names.known[NAME] = ("10.0.0.1", "10.0.0.2")
    with closing(over(f"{NAME}:8000")) as balanced:
        eventually(lambda: len(balanced.answering()) == 2)
        names.known.clear()
        before = names.asked[NAME]
        eventually(lambda: names.asked[NAME] > before + 2)
        eventually(lambda: set(answered(balanced)) == {"10.0.0.1", "10.0.0.2"})


def test_what_is_known_of_a_server_that_stays_is_kept() -> None:
    found = FoundServers([Address.of("a:1"), Address.of("127.0.0.1:2")], way)
    assert found.known() == found.known()
    assert [each.address for each in found.known()] == ["by name 0", "by name 1"]
    assert all(one is other for one, other in zip(found.known(), found.known(), strict=True))


def test_a_name_with_a_single_server_is_asked_by_its_name_and_those_beside_it_by_theirs(
    names: KnownNames,
) -> None:
    names.known = {"one.test": ("10.0.0.9",), NAME: ("10.0.0.1", "10.0.0.2")}
    found = FoundServers([Address.of(each) for each in ("one.test:1", f"{NAME}:1", "127.0.0.1:1")], way)
    assert [each.address for each in found.now()] == ["by name 0", "10.0.0.1", "10.0.0.2", "by name 2"]
    assert "127.0.0.1" not in names.asked


def test_one_that_went_is_looked_at_no_more(names: KnownNames, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = TritonUnreachable.at("10.0.0.1:1", "no route")

    def fails(self: AnsweringServer, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        self.asked += 1
        if self.address == "10.0.0.1":
            raise gone
        yield Reply(self.address)

    monkeypatch.setattr(AnsweringServer, "send", fails)
    names.known[NAME] = ("10.0.0.1", "10.0.0.2")
    with closing(over(f"{NAME}:8000")) as balanced:
        eventually(lambda: len(balanced.answering()) == 2)
        answered(balanced)
        assert not balanced.answering()["10.0.0.1"]
        (went,) = [each for each in balanced._replicas if each.transport.address == "10.0.0.1"]
        names.known[NAME] = ("10.0.0.2", "10.0.0.3")
        eventually(lambda: "10.0.0.1" not in balanced.answering())
        time.sleep(0.6)  # longer than until the next look
        asked = went.transport.asked  # type: ignore[attr-defined]
        time.sleep(1.2)
        assert went.transport.asked == asked  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "address", ["localhost:1", "127.0.0.1:1", "[::1]:1", "10.1.2.3:1", "[2001:db8::1]:1"]
)
def test_addresses_and_loopback_are_never_looked_up(address: str) -> None:
    assert not Address.of(address).is_looked_up
    assert Address.of(f"https://{NAME}").is_looked_up


def test_each_server_of_a_list_is_named(names: KnownNames) -> None:
    names.known[NAME] = ("10.0.0.1", "2001:db8::1")
    assert each_server(f"localhost:1,https://{NAME}") == [
        "localhost:1",
        "https://10.0.0.1:443",
        "https://[2001:db8::1]:443",
    ]


def test_the_machine_s_own_resolver_answers_and_what_it_does_not_know_is_nothing() -> None:
    assert set(lookup.look_up("localhost")) <= {"127.0.0.1", "::1"}
    assert lookup.look_up("localhost")
    assert lookup.look_up("a-name-that-nobody-has.invalid") == ()
    assert lookup.look_up("x" * 300) == ()


def test_a_server_that_is_asked_by_its_ip_hears_the_name(listen: Listen) -> None:
    listener = listen(http({}))
    with closing(transport(Address.of(f"{NAME}:{listener.server_port}"), 1.0, "127.0.0.1")) as way_there:
        list(way_there.send(Call("live"), Deadline(5.0)))
    assert way_there.address == listener.url
    assert listener.hosts == [f"{NAME}:{listener.server_port}"]


def test_a_certificate_is_verified_against_the_name_and_not_the_ip(
    listen: Listen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path)
    monkeypatch.setenv("TRITON_CA_FILE", str(certificates.ca))

    def ask(scheme: str, san: str) -> bytes:
        """What was said to the server."""
        with TlsDoor(listen(http({})).url, certificates.context("here", san)) as door:
            at = Address.of(f"{scheme}://{NAME}:{door.place.rpartition(':')[2]}")
            with closing(transport(at, 1.0, "127.0.0.1")) as way_there, suppress(TritonUnreachable):
                list(way_there.send(Call("live"), Deadline(1.0)))
            return door.asked

    assert b"HTTP/1.1" in ask("https", f"DNS:{NAME}")
    assert b"HTTP" not in ask("https", "IP:127.0.0.1")
    assert b"HTTP/2" in ask("grpcs", f"DNS:{NAME}")
    assert b"HTTP" not in ask("grpcs", "IP:127.0.0.1")


def test_a_connection_has_a_longest_life(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an address that balances, one that is kept for ever never reaches a server that came since."""
    listener = listen(http({}))
    with Triton.at(listener.url) as triton:
        for _ in range(5):
            triton.check_live()
        assert listener.connections == 1
    monkeypatch.setattr(http_client, "_LIFE_S", 0.2)
    with Triton.at(listener.url) as triton:
        ends = time.monotonic() + 1.0
        while time.monotonic() < ends:
            triton.check_live()
        assert 1 + 3 <= listener.connections <= 1 + 8
