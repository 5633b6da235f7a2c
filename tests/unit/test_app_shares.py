"""Who may have how many places."""

from __future__ import annotations

import pytest

from app.admission.queue import Lines, Shares, client_of

ME, YOU, SHE = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def fill(shares: Shares, client: str) -> int:
    taken = 0
    while shares.allows(client):
        shares.take(client)
        taken += 1
    return taken


@pytest.mark.parametrize(("places", "mine"), [(0, 0), (1, 1), (2, 2), (4, 3), (8, 6), (32, 24)])
def test_one_client_alone_has_three_quarters(places: int, mine: int) -> None:
    assert fill(Shares(places), ME) == mine


def test_there_is_room_for_the_next_whoever_came_before() -> None:
    shares = Shares(64)
    assert [fill(shares, f"192.0.2.{number}") for number in range(4)] == [48, 12, 3, 1]
    shares = Shares(64)
    fill(shares, ME)
    shares.give_back(ME, 10)
    assert shares.allows(ME, 10)
    assert not shares.allows(ME, 11)
    assert shares.allows(YOU, 20)


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_a_client_is_an_address(address: str, client: str) -> None:
    assert client_of(address) == client
    assert client_of(client) == client


def test_a_subscriber_of_ipv6_has_many_addresses_and_is_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1:2") != client_of("2001:db8:0:1::1")


def test_lines_are_served_in_turn_and_who_may_not_is_passed_over() -> None:
    lines = Lines[int]()
    for number, client in enumerate([ME, ME, ME, YOU, SHE]):
        lines.add(client, number)
    assert [lines.before(client) for client in (ME, YOU, SHE)] == [5, 4, 4]
    assert lines.next(lambda client: client != ME) == (YOU, 3)
    assert lines.remove(ME, 1)
    assert not lines.remove(ME, 1)
    assert not lines.remove(YOU, 3)
    served = []
    while found := lines.next(lambda client: True):
        served.append(found[1])
    assert served == [0, 4, 2]
    assert not lines
