"""Steady load through the app in which every request is accounted for.

    photos = learn(web.url, some_photos)            # what each is answered when it is asked alone
    with PhotoLoad(web.url, photos, per_s=20) as load:
        time.sleep(5)
        ...bring the fault about, and end it...
        ended = time.monotonic()
        time.sleep(10)
    account = load.account()
    account.count(WRONG), account.count(SILENT), account.recovery_s(ended)

Requests are sent when they are due, however many are still under way (an open loop), each on a
connection of its own. `at_once` instead of `per_s` sends the next when one is answered (a closed loop),
which finds out how much can be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import cycle
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from support.exchange import HttpAnswer, Unanswered, connect

from gourmet.bench.async_client import LoadGenerator
from gourmet.bench.results import LoadSpec
from gourmet.bench.transports import RawReply, Request

Outcome = Literal["answered", "refused", "wrong", "silent"]
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
WRONG: Final = "wrong"
SILENT: Final = "silent"

# Batches of other sizes round differently; the photos' own answers lie further apart than this.
_SAME: Final = 2e-3
_SILENT_AFTER_S: Final = 30
_PROXY: Final = "503 of the proxy"
_MUST_SAY_WHEN: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True)
class KnownPhoto:
    """A photo with the answer that it has when it is asked alone."""

    data: bytes
    label: str
    probability: float


@dataclass(frozen=True)
class Attempt:
    """One request; the moments are of time.monotonic(), `reason` is the status and code or how it ended."""

    due: float
    sent: float
    done: float
    outcome: Outcome
    reason: str

    @property
    def seconds(self) -> float:
        return self.done - self.sent


@dataclass(frozen=True)
class Account:
    attempts: tuple[Attempt, ...]

    def between(self, begin: float, end: float) -> Account:
        """The requests that were sent in that time."""
        return Account(tuple(attempt for attempt in self.attempts if begin <= attempt.sent < end))

    def count(self, outcome: Outcome) -> int:
        return sum(attempt.outcome == outcome for attempt in self.attempts)

    def reasons(self, outcome: Outcome) -> Counter[str]:
        return Counter(attempt.reason for attempt in self.attempts if attempt.outcome == outcome)

    @property
    def lost(self) -> Counter[str]:
        """Wrong and missing answers, by reason; none is allowed."""
        return self.reasons(WRONG) + self.reasons(SILENT)

    @property
    def late_s(self) -> float:
        """By how much the latest of 95 % were sent after they were due: the client's own fault."""
        return quantile([attempt.sent - attempt.due for attempt in self.attempts], 0.95)

    def per_s(self, outcome: Outcome) -> float:
        """Return the requests per second with this outcome."""
        ends = [attempt.done for attempt in self.attempts if attempt.outcome == outcome]
        return (len(ends) - 1) / (max(ends) - min(ends)) if len(ends) > 1 else 0.0

    def quantile_s(self, outcome: Outcome, share: float) -> float:
        """The time within which that share of these requests was over; nan where there are none."""
        return quantile([attempt.seconds for attempt in self.attempts if attempt.outcome == outcome], share)

    def recovery_s(self, since: float) -> float | None:
        """How long after `since` it took until every request was answered; None if it still was not so."""
        after = [attempt for attempt in self.attempts if attempt.sent >= since]
        if not after or after[-1].outcome != ANSWERED:
            return None
        bad = [attempt.sent for attempt in after if attempt.outcome != ANSWERED]
        good = [attempt.sent for attempt in after if attempt.sent > max(bad, default=0.0)]
        return good[0] - since if bad else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


class PhotoLoad:
    """Photos in a thread: `per_s`, which may change meanwhile, or `at_once` under way."""

    def __init__(
        self,
        url: str,
        photos: Sequence[KnownPhoto],
        per_s: float = 0.0,
        *,
        at_once: int = 0,
    ) -> None:
        spec = LoadSpec("", at_once) if at_once else LoadSpec("", per_s, "constant")
        client = _PhotosClient(url)
        requests = (
            Request((), photo, {"X-Request-ID": f"load-{n}"}) for n, photo in enumerate(cycle(photos))
        )
        self._outcomes: list[tuple[Outcome, str]] = []
        self._load = LoadGenerator(
            client,
            requests,
            spec,
            lambda _, reply: self._outcomes.append(reply.body),
            max_in_flight=math.inf,
            max_late_s=math.inf,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="load")

    @property
    def per_s(self) -> float:
        return self._load.load.level

    @per_s.setter
    def per_s(self, rate: float) -> None:
        self._load.load = replace(self._load.load, level=rate)

    def __enter__(self) -> PhotoLoad:
        _allow_many_connections()
        self._running = self._pool.submit(self._load.run)
        return self

    def __exit__(self, *_: object) -> None:
        self._load.stop()
        self._pool.shutdown()

    def account(self) -> Account:
        """Everything so far; after the end, every request that was sent."""
        if self._running.done():
            self._running.result()
        # The times are of time.perf_counter, which is time.monotonic on Linux.
        times = zip(self._load.times.copy(), self._outcomes, strict=False)
        attempts = [Attempt(*moments, *outcome) for moments, outcome in times]
        return Account(tuple(sorted(attempts, key=lambda attempt: attempt.sent)))


class _PhotosClient:
    """Asks the app for one photo, as a form."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    async def send(self, request: Request) -> RawReply:
        """The body of the reply is the outcome and its reason."""
        photo, name = request.body, request.headers["X-Request-ID"]
        try:
            return RawReply({}, judge(await self.ask(photo.data, name), photo, name))
        except Unanswered as exc:
            return RawReply({}, (SILENT, str(exc)))

    async def ask(self, photo: bytes, name: str) -> HttpAnswer:
        connection = None
        try:
            async with asyncio.timeout(_SILENT_AFTER_S):
                connection = await connect(self._host, self._port)
                return await connection.exchange(self._message(name, photo))
        except TimeoutError:
            raise Unanswered(f"no answer within {_SILENT_AFTER_S} s") from None
        finally:
            if connection:
                connection.close()

    async def close(self) -> None:
        """No connection outlives its request."""

    def _message(self, name: str, photo: bytes) -> bytes:
        body = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="photo.jpg"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n" + photo + b"\r\n--b--\r\n"
        )
        head = (
            f"POST /predict HTTP/1.1\r\nHost: {self._host}\r\nAccept: application/json\r\n"
            f"X-Request-ID: {name}\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def judge(answer: HttpAnswer, photo: KnownPhoto, name: str) -> tuple[Outcome, str]:
    """Classify the answer to the request `name`: right, refused with a reason, or wrong."""
    named = answer.headers.get("x-request-id")
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE and not named and "retry-after" in answer.headers:
        return REFUSED, _PROXY
    if named != name:
        return WRONG, f"{answer.status} with the id {named!r}"
    try:
        body: Any = answer.json
        if answer.status == HTTPStatus.OK:
            right = body["label"] == photo.label and abs(body["probability"] - photo.probability) < _SAME
            difference = (
                f"{body['label']} {body['probability']:.3f} for {photo.label} {photo.probability:.3f}"
            )
            return (ANSWERED, "200") if right else (WRONG, difference)
        code = body["error"]["code"]
        assert body["error"]["message"]
    except (ValueError, KeyError, TypeError, AssertionError):
        return WRONG, f"{answer.status} without a reason"
    if answer.status in _MUST_SAY_WHEN and not answer.headers.get("retry-after", "").isdigit():
        return WRONG, f"{answer.status} {code} without Retry-After"
    return (WRONG if code == "internal" else REFUSED), f"{answer.status} {code}"


def learn(url: str, photos: Sequence[bytes]) -> list[KnownPhoto]:
    """Return the answer to each photo, sent alone; the answers must differ, so that a mix-up shows."""

    async def ask_all() -> list[HttpAnswer]:
        client = _PhotosClient(url)
        return [await client.ask(photo, "learn") for photo in photos]

    photos_known = []
    # In a thread: where a browser is open, its driver's loop runs in this one already.
    with ThreadPoolExecutor(1) as beside:
        answers = beside.submit(lambda: asyncio.run(ask_all())).result()
    for data, answer in zip(photos, answers, strict=True):
        assert answer.status == HTTPStatus.OK, answer.body
        photos_known.append(KnownPhoto(data, answer.json["label"], answer.json["probability"]))
    apart = [(photo.label, round(photo.probability / _SAME / 2)) for photo in photos_known]
    assert len(set(apart)) > len(photos_known) / 2, f"too much alike to tell a mix-up: {apart}"
    return photos_known


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16384)), hard))
