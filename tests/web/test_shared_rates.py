"""Web apps that count clients together in a real Redis, which is lost and comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from support.eventually import eventually
from support.needs import need
from support.repeating import Repeating
from support.web_app import StartWeb, WebApp, WebReply

from gourmet.stack.preflight import free_ports

AWAY = "127.0.0.1:9"  # what is counted needs no Triton
PASSWORD = "a-password-that-nobody-may-read"
COUNTED = "/api/v1/models"


class RedisServer:
    """A Redis that keeps nothing on disk, on a port that it comes back to."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self._folder = folder
        self.start()

    def start(self) -> None:
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder)]
        options = ["--save", "", "--appendonly", "no", "--requirepass", PASSWORD]
        command = [need("redis-server"), *where, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        eventually(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.end()


KEYS = tuple(letter * 16 for letter in "abcdefghij")


def two(start: StartWeb, server: RedisServer, rate: str) -> list[WebApp]:
    settings = {"RATE_LIMIT": rate, "RATE_LIMIT_STORAGE": server.url, "WEB_CONCURRENCY": "1"}
    return [start(AWAY, API_KEYS=",".join(KEYS), **settings) for _ in range(2)]


def ask(web: WebApp, key: str = KEYS[0]) -> WebReply:
    return web.request("GET", COUNTED, X_API_Key=key)


def alone(webs: list[WebApp]) -> float:
    """Return how many requests the apps counted without Redis."""
    name = "web_rate_limit_failures_total "
    lines = (line for web in webs for line in web.request("GET", "/metrics").body.decode().splitlines())
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_web_apps_share_one_rate_limit_per_client_and_count_alone_without_redis(
    start: StartWeb, server: RedisServer
) -> None:
    webs = two(start, server, "20/h")
    # Again where an app did not wait for Redis, which has a quarter of a second.
    for key, another in zip(KEYS[::2], KEYS[1::2], strict=True):
        before = alone(webs)
        replies = [ask(webs[number % 2], key) for number in range(40)]
        others = [ask(web, another).status == 429 for web in webs]
        if alone(webs) == before:
            break
    assert alone(webs) == before
    assert [reply.status == 429 for reply in replies] == [False] * 20 + [True] * 20
    assert replies[0].headers["ratelimit"].startswith('"default";r=19;t=3')
    assert 0 < int(replies[-1].headers["retry-after"]) <= 3600
    assert others == [False, False]
    held = Redis.from_url(server.url)
    keys = held.keys("*")
    assert len(keys) == 2 + KEYS.index(key)
    assert not [name for name in keys if b"aaaa" in name or b"127.0.0.1" in name]
    assert all(3000 < held.ttl(name) <= 3600 for name in keys)  # it forgets by itself
    server.end()
    for web in webs:  # each app counts from nothing
        assert [ask(web, key).status == 429 for _ in range(21)] == [False] * 20 + [True]
    assert all(PASSWORD not in web.log.read_text() for web in webs)


@pytest.mark.promise("operating: the Redis of `RATE_LIMIT_STORAGE` is lost")
@pytest.mark.parametrize("fault", ["killed", pytest.param("stopped", marks=pytest.mark.slow)])
def test_without_redis_no_client_is_refused_and_its_return_is_noticed(
    start: StartWeb, server: RedisServer, fault: str
) -> None:
    webs = two(start, server, "900000/h")
    replies: list[WebReply] = []
    held = Redis.from_url(server.url)

    def counts_together() -> bool:
        before = alone(webs)
        for web in webs:
            ask(web)
        return alone(webs) == before

    with Repeating(lambda client, _: replies.append(ask(webs[client % 2])), 4):
        eventually(lambda: held.keys("*") != [])
        if fault == "killed":
            server.end()
        else:
            os.kill(server.process.pid, signal.SIGSTOP)
        eventually(lambda: alone(webs) > 20)
        if fault == "killed":
            server.start()
        else:
            os.kill(server.process.pid, signal.SIGCONT)
        eventually(counts_together)
    assert {reply.status for reply in replies} == {503}  # there is no Triton
