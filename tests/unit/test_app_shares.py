"""Who may have how many places, which connections have to go, and when a head is whole."""

from __future__ import annotations

import contextlib
import io
import socket

import pytest
from gunicorn.config import Config
from gunicorn.http import get_parser
from gunicorn.http.errors import ParseException

from app.admission import heads
from app.admission.crowd import Crowd
from app.admission.shares import Lines, Shares, client_of

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


def test_of_a_crowd_the_oldest_of_the_peer_with_most_has_to_go() -> None:
    crowd = Crowd[str]()
    crowd.add(YOU, "first", 1)
    crowd.add(ME, "second", 3)
    crowd.add(ME, "third")
    assert crowd.oldest() == "second"
    assert crowd.late(2) == ["first"]
    crowd.leave_by(2.5)
    assert sorted(crowd.late(2.5)) == ["first", "second"]
    crowd.set_until(YOU, "first", 9)
    assert crowd.late(3) == ["second"]
    crowd.remove(ME, "second")
    crowd.remove(ME, "third")
    assert (crowd.oldest(), len(crowd)) == ("first", 1)


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Never:
    """A connection that must not be read from."""

    def recv(self, size: int) -> bytes:
        raise AssertionError("more is read than is there")


@pytest.mark.parametrize(
    "sent",
    [
        REQUEST,
        b"\r\n" + REQUEST,
        b"\r\n\r\n\r\n",
        b"\r\n\r\n" + REQUEST,
        b"GET / HTTP/1.1\r\n\r\n",
        REQUEST + b"rest",
        b"GET / HTTP/1.1\n\n",
        b"GET / HTTP/1.1\r\nHost: x\n\n",
        b"\n",
        b"\x16\x03\x01\n",
    ],
)
def test_where_a_head_is_whole_gunicorn_reads_no_further(sent: bytes) -> None:
    """It answers or raises; it would wait for ever otherwise, with a thread."""
    assert heads.is_whole(sent)
    parser = get_parser(Config(), Never(), (ME, 1))
    parser.unreader.unread(sent)
    with contextlib.suppress(ParseException):
        next(parser)


@pytest.mark.parametrize("size", range(len(REQUEST)))
def test_no_beginning_of_a_head_is_whole(size: int) -> None:
    assert not heads.is_whole(REQUEST[:size])
    assert not heads.is_whole(b"\r\n" + REQUEST[:size])


def test_a_head_is_read_as_it_comes() -> None:
    ours, theirs = socket.socketpair()
    buffer = io.BytesIO()
    with ours, theirs:
        assert not heads.read(ours, buffer)
        for at in range(len(REQUEST) - 1):
            theirs.sendall(REQUEST[at : at + 1])
            assert not heads.read(ours, buffer)
        theirs.sendall(REQUEST[-1:] + b"body")
        assert heads.read(ours, buffer)
        assert buffer.getvalue() == REQUEST + b"body"
        theirs.sendall(b"x" * (heads.MOST_BYTES + 1))
        long = io.BytesIO()
        assert not heads.read(ours, long)
        assert len(long.getvalue()) > heads.MOST_BYTES


def test_the_end_of_a_connection_is_the_end_of_a_head_that_has_begun() -> None:
    for sent in (b"GET / HT", b""):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                theirs.sendall(sent)
            if sent:
                assert heads.read(ours, io.BytesIO())
            else:
                with pytest.raises(ConnectionError):
                    heads.read(ours, io.BytesIO())
