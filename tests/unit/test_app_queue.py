"""The admission queue, the upload slots and the shares of each client, without an app around them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.eventually import eventually

from app.admission.queue import AdmissionQueue, Upload, UploadSlots, client_of
from app.core.errors import Overloaded, Stopping
from gourmet.runtime.turns import Lines, Shares

ME, YOU, SHE = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def test_who_comes_once_waits_for_one_turn_of_who_came_often() -> None:
    line, order = AdmissionQueue(1, 12, 20), []
    line.acquire(ME)

    def wait(client: str) -> None:
        line.acquire(client)
        order.append(client)
        line.release(client)

    with ThreadPoolExecutor(7) as pool:
        for number, client in enumerate([ME, ME, ME, ME, YOU, YOU, SHE]):
            pool.submit(wait, client)
            eventually(lambda many=number + 1: len(line._waiting) == many)
        line.release(ME)
    assert order == [ME, YOU, SHE, ME, YOU, ME, ME]


def test_nobody_has_all_turns_or_all_places_in_the_line() -> None:
    line = AdmissionQueue(8, 8, 20)
    for _ in range(6):
        assert line.acquire(ME) == 0
    with ThreadPoolExecutor(6) as pool:
        for number in range(6):
            assert not line.is_full(ME)
            pool.submit(line.acquire, ME)
            eventually(lambda many=number + 1: len(line._waiting) == many)
        assert line.is_full(ME)
        assert line.acquire(YOU) == 0
        assert not line.is_full(YOU)
        line.close()
        for _ in range(6):
            line.release(ME)


def test_beyond_the_line_nobody_waits() -> None:
    line = AdmissionQueue(1, 0, 20)
    assert not line.is_full(ME)
    line.acquire(ME)
    assert line.is_full(YOU)
    with pytest.raises(Overloaded):
        line.acquire(YOU)
    line.release(ME)
    assert not line.is_full(YOU)


def test_who_waited_too_long_is_sent_away_and_leaves_no_gap() -> None:
    line = AdmissionQueue(1, 2, 0.05)
    line.acquire(ME)
    with pytest.raises(Overloaded):
        line.acquire(ME)
    line.release(ME)
    assert line.acquire(ME) == 0


def test_a_slow_pace_makes_the_line_short() -> None:
    """At a turn a second, ten seconds are ten places, however many there are."""
    clock = [0.0]
    line = AdmissionQueue(1, 100, 10, now=lambda: clock[0])
    line.acquire(ME)
    with ThreadPoolExecutor(60) as pool:
        for _ in range(50):
            pool.submit(line.acquire, ME)
        eventually(lambda: len(line._waiting) == 50)
        assert not line.is_full(ME)
        for left in range(49, 20, -1):
            clock[0] += 1
            line.release(ME)
            assert len(line._waiting) == left
        assert line.is_full(ME)
        assert not line.is_full(YOU)  # whose turn is the next but one
        while len(line._waiting) > 5:
            clock[0] += 1
            line.release(ME)
        assert not line.is_full(ME)
        clock[0] += 30  # nothing has ended for long
        assert line.is_full(ME)
        assert line.is_full(YOU)
        line.close()


def test_a_line_that_was_full_is_kept_short_until_it_was_empty() -> None:
    line = AdmissionQueue(4, 8, 20)

    def come(many: int) -> None:
        for _ in range(many):
            assert not line.is_full(ME)
            now_waiting = len(line._waiting) + 1
            pool.submit(line.acquire, ME)
            eventually(lambda so_many=now_waiting: len(line._waiting) == so_many)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            line.acquire(ME)
        come(6)
        for _ in range(4):
            assert line.is_full(ME)
            line.release(ME)
        come(1)  # its share of four, who may wait now
        assert line.is_full(ME)
        for _ in range(3):
            line.release(ME)
        come(6)
        assert line.is_full(ME)
        line.close()


def test_who_is_about_to_wait_counts_for_a_moment() -> None:
    clock = [0.0]
    line = AdmissionQueue(1, 2, 10, now=lambda: clock[0])
    line.acquire(ME)
    coming = line.expect(ME)
    assert not line.is_full(YOU)
    other = line.expect(YOU)
    assert line.is_full(SHE)
    line.forget(other)
    assert not line.is_full(SHE)
    line.expect(SHE)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(line.acquire, ME, coming)  # no longer about to
        eventually(lambda: len(line._waiting) == 1)
        assert line.is_full(YOU)
        clock[0] += 1  # that upload is a slow one, and holds no place in the line
        assert not line.is_full(YOU)
        line.close()


def test_when_it_is_closed_those_who_wait_are_sent_away_and_those_at_work_go_on() -> None:
    line = AdmissionQueue(1, 5, 20)
    line.acquire(ME)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(line.acquire, ME) for _ in range(2)]
        eventually(lambda: len(line._waiting) == 2)
        line.close()
        assert {type(each.exception()) for each in waiting} == {Stopping}
    with pytest.raises(Stopping):
        line.acquire(ME)
    line.release(ME)


def test_the_slots_count_uploads_and_the_bytes_that_came() -> None:
    slots = UploadSlots(uploads=4, held_bytes=100)
    mine = Upload(slots, ME, 500)  # larger than all that is allowed, but alone
    mine.hold(60)
    mine.hold(60)
    with pytest.raises(Overloaded):
        Upload(slots, YOU, 1)
    mine.received()
    mine.forget()
    mine = Upload(slots, ME, 0)
    mine.hold(40)
    with pytest.raises(Overloaded):
        Upload(slots, YOU, 70)
    yours = Upload(slots, YOU, 0)  # does not say how much will come
    yours.hold(40)
    with pytest.raises(Overloaded):
        yours.hold(30)
    for each in (yours, mine):
        each.forget()
    mine.received()
    for _ in range(2):
        Upload(slots, YOU, 100)  # of which nothing has come
    with pytest.raises(Overloaded):
        Upload(slots, YOU, 0)  # three of four are under way
    Upload(slots, ME, 0)


ME, YOU, SHE = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def fill(shares: Shares, client: str) -> int:
    taken = 0
    while shares.allows(client):
        shares.take(client)
        taken += 1
    return taken


@pytest.mark.parametrize(("places", "mine"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (32, 24)])
def test_one_client_alone_has_three_quarters_and_not_the_last(places: int, mine: int) -> None:
    assert fill(Shares(places), ME) == mine


def test_there_is_room_for_the_next_client() -> None:
    shares = Shares(64)
    assert [fill(shares, f"192.0.2.{number}") for number in range(4)] == [48, 12, 3, 1]
    shares = Shares(64)
    fill(shares, ME)
    shares.give_back(ME, 10)
    assert shares.allows(ME, 10)
    assert not shares.allows(ME, 11)
    assert shares.allows(YOU, 20)


def test_beside_others_a_client_has_fewer_places_than_alone() -> None:
    clock = [0.0]
    shares = Shares(8, beside=2, now=lambda: clock[0])
    assert fill(shares, ME) == 6
    shares.give_back(ME, 6)
    shares.take(YOU)
    assert fill(shares, ME) == 2
    clock[0] += 60  # it is still there
    assert fill(shares, ME) == 0
    shares.give_back(YOU)
    assert fill(shares, ME) == 0
    clock[0] += 6
    assert fill(shares, ME) == 4


def test_places_beside_others_are_enough_for_all_to_be_used() -> None:
    shares, clients = Shares(8, beside=2), [f"198.51.100.{number}" for number in range(6)]
    for client in clients * 2:
        if shares.allows(client):
            shares.take(client)
    assert shares.free == 1  # which is for who has none
    assert shares.allows(YOU)


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("unknown", "unknown"),
        ("192.0.2.7:50123", "192.0.2.7"),
        ("[2001:db8::1]:50123", "20010db800000000/64"),
        ("[2001:db8::1]", "20010db800000000/64"),
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


def test_who_was_served_the_least_is_next_by_what_each_costs() -> None:
    lines = Lines[str]()
    for cost, client in ((90, ME), (10, YOU)):
        for _ in range(10):
            lines.add(client, client, cost)
    first = [(lines.next() or ("", ""))[0] for _ in range(10)]
    assert first == [ME, *[YOU] * 9]
    lines.add(SHE, SHE, 1000)  # who comes anew has no advance, and none is behind
    after = [(lines.next() or ("", ""))[0] for _ in range(3)]
    assert sorted(after) == sorted([ME, YOU, SHE])
