"""The client of the hard tier: it loses no request, whatever a server does with it."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import table
from support.accounting import (
    ANSWERED,
    REFUSED,
    SILENT,
    WRONG,
    Account,
    Attempt,
    KnownPhoto,
    PhotoLoad,
    learn,
)

RIGHT = {"label": "Soup", "probability": 0.5}
NO = {"error": {"code": "overloaded", "message": "too much to do", "request_id": "x"}}


class PhotoServer(socketserver.ThreadingTCPServer):
    """Answers in whatever way the photo asks for, which is its text."""

    daemon_threads = True
    closed: ClassVar[set[str]] = set()


class PhotoHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.rfile.readline()
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        body = self.rfile.read(int(headers["Content-Length"]))
        how = body.split(b"\r\n\r\n")[1].split(b"\r\n")[0].decode()
        name = headers["X-Request-ID"]
        if how == "silence":
            time.sleep(1)
        elif how == "half":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        elif how == "close once" and name not in PhotoServer.closed:
            PhotoServer.closed.add(name)
        elif how != "close":
            self.answer(how, name)

    def answer(self, how: str, name: str) -> None:
        served = {
            "soup": RIGHT,
            "close once": RIGHT,
            "other": {**RIGHT, "label": "Bread"},
            "id": RIGHT,
            "garbage": "oops",
        }
        text = json.dumps(served.get(how, NO))
        status = "200 OK" if how in served and how != "garbage" else "503 Busy"
        more = "Retry-After: 2\r\n" if how == "busy" else ""
        given = "somebody-else" if how == "id" else name
        head = f"HTTP/1.1 {status}\r\nX-Request-ID: {given}\r\n{more}Content-Length: {len(text)}\r\n\r\n"
        self.wfile.write(head.encode() + text.encode())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with PhotoServer(("127.0.0.1", 0), PhotoHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("how", "asks_again", "outcome", "reason"),
    [
        ("soup", False, ANSWERED, "200"),
        ("busy", False, REFUSED, "503 overloaded"),
        ("other", False, WRONG, "Bread 0.500 for Soup 0.500"),
        ("id", False, WRONG, "200 with the id 'somebody-else'"),
        ("garbage", False, WRONG, "503 without a reason"),
        ("hopeless", False, WRONG, "503 overloaded without Retry-After"),
        ("close", False, SILENT, "the connection was closed without an answer"),
        ("half", False, SILENT, "the connection was closed in the middle of an answer"),
        ("silence", False, SILENT, "no answer within 0.3 s"),
        ("close once", False, SILENT, "the connection was closed without an answer"),
        ("close once", True, ANSWERED, "200"),
        ("close", True, SILENT, "the connection was closed without an answer"),
    ],
)
def test_each_way_to_end_is_told_from_the_others(
    url: str, how: str, asks_again: bool, outcome: Any, reason: str
) -> None:
    PhotoServer.closed.clear()
    photos = [KnownPhoto(how.encode(), "Soup", 0.5)]
    with PhotoLoad(url, photos, per_s=40, silent_after_s=0.3, asks_again=asks_again) as load:
        load.run_for(0.3)
    account = load.account()
    assert account.count(outcome) == len(account.attempts) >= 5
    assert set(account.reasons(outcome)) == {reason}
    assert account.asked_again == (len(account.attempts) if asks_again else 0)


def test_nobody_there_counts_as_lost() -> None:
    with PhotoLoad("http://127.0.0.1:9", [KnownPhoto(b"x", "Soup", 0.5)], per_s=20) as load:
        load.run_for(0.2)
    assert load.account().count(SILENT) == len(load.account().attempts) > 0


def test_the_same_answer_for_every_photo_would_hide_a_mix_up(url: str) -> None:
    with pytest.raises(AssertionError, match="too much alike"):
        learn(url, [b"soup", b"soup"])


def attempt(at: float, outcome: Any) -> Attempt:
    return Attempt(at, at, at + 0.01, outcome, outcome)


def test_recovery_counts_until_every_request_is_answered_again() -> None:
    fault = Account((attempt(0, ANSWERED), attempt(1, SILENT), attempt(2, REFUSED), attempt(3, ANSWERED)))
    assert fault.recovery_s(since=1.5) == 1.5
    assert fault.recovery_s(since=2.5) == 0
    assert Account((*fault.attempts, attempt(4, WRONG))).recovery_s(since=1.5) is None


def test_a_row_is_written_read_and_put_into_the_page(tmp_path: Path) -> None:
    account = Account((attempt(0, ANSWERED), attempt(1, REFUSED), attempt(2, SILENT)))
    row = account.row("a fault", seen="a 503", held={"memory": False}, recovery_s=1.26)
    table.save(row, tmp_path / "rows")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(table.rows(tmp_path / "rows"), page)
    text = page.read_text()
    assert "| **not survived:** a fault | 1 | 3 | 1 | 1 × refused | 0 | 1 × silent | 1.3 s |" in text
    assert "- **a fault**: not held: nobody is lost, memory" in text
    assert ("old" in text, text.startswith("before\n"), text.endswith("after\n")) == (False, True, True)
    committed = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    assert committed.count(table.BEGIN) == committed.count(table.END) == 1
