"""Steady load through the app in which every request is accounted for.

    photos = learn(web.url, some_photos)            # what each is answered when it is asked alone
    with PhotoLoad(web.url, photos, per_s=20) as load:
        ...bring a fault about, and end it...
    account = load.account()
    account.lost, account.count(REFUSED), account.recovery_s(ended)

Requests are sent when they are due, however many are still under way (an open loop), each on a
connection of its own. `at_once` instead of `per_s` sends the next when one is answered (a closed loop),
which finds out how much can be done.
"""

from __future__ import annotations

import contextlib
import math
import resource
import statistics
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import aiohttp
from support.web_app import HttpAnswer, Site, form

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


@dataclass(frozen=True)
class Account:
    attempts: tuple[Attempt, ...]

    def between(self, begin: float, end: float) -> Account:
        """The requests that were sent in that time."""
        return Account(tuple(attempt for attempt in self.attempts if begin <= attempt.sent < end))

    def of(self, outcome: Outcome) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.outcome == outcome]

    def count(self, outcome: Outcome) -> int:
        return len(self.of(outcome))

    def reasons(self, outcome: Outcome) -> Counter[str]:
        return Counter(attempt.reason for attempt in self.of(outcome))

    @property
    def lost(self) -> Counter[str]:
        """Wrong and missing answers, by reason; none is allowed."""
        return self.reasons(WRONG) + self.reasons(SILENT)

    def answered_per_s(self) -> float:
        ends = [attempt.done for attempt in self.of(ANSWERED)]
        return (len(ends) - 1) / (max(ends) - min(ends))

    def p95_s(self) -> float:
        """The time within which 95 % of the answers came."""
        return statistics.quantiles([a.done - a.sent for a in self.of(ANSWERED)], n=20)[-1]

    def recovery_s(self, since: float) -> float:
        """How long after `since` it took until every request was answered."""
        after = [attempt for attempt in self.attempts if attempt.sent >= since]
        assert after, "no request was made after that"
        bad = [attempt.sent for attempt in after if attempt.outcome != ANSWERED]
        return min((a.sent - since for a in after if a.sent > max(bad)), default=math.inf) if bad else 0.0


class PhotoLoad:
    """Photos in a thread: `per_s`, which may change meanwhile, or `at_once` under way."""

    def __init__(
        self, url: str, photos: Sequence[KnownPhoto], per_s: float = 0.0, *, at_once: int = 0
    ) -> None:
        spec = LoadSpec("", at_once) if at_once else LoadSpec("", per_s, "constant")
        requests = (
            Request((), photo, {"X-Request-ID": f"load-{n}"}) for n, photo in enumerate(cycle(photos))
        )
        self._outcomes: list[tuple[Outcome, str]] = []
        self._load = LoadGenerator(
            _PhotosClient(url),
            requests,
            spec,
            lambda _, reply: self._outcomes.append(reply.body),
            max_in_flight=math.inf,
            max_late_s=math.inf,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="load")

    def go_on_with(self, per_s: float) -> None:
        self._load.load = replace(self._load.load, level=per_s)

    def __enter__(self) -> PhotoLoad:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16384)), hard))
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
        self._url = f"{url}/predict"

    async def send(self, request: Request) -> RawReply:
        """The body of the reply is the outcome and its reason."""
        photo, name = request.body, request.headers["X-Request-ID"]
        body, content = form(photo.data)
        headers = {**content, "Accept": "application/json", "X-Request-ID": name}
        # No connection outlives its request.
        connector = aiohttp.TCPConnector(force_close=True)
        limit = aiohttp.ClientTimeout(_SILENT_AFTER_S)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=limit) as session,
                session.post(self._url, data=body, headers=headers) as reply,
            ):
                head = {name.lower(): value for name, value in reply.headers.items()}
                return RawReply({}, judge(HttpAnswer(reply.status, head, await reply.read()), photo, name))
        except (aiohttp.ClientError, TimeoutError) as exc:
            return RawReply({}, (SILENT, repr(exc)))

    async def close(self) -> None: ...


def judge(answer: HttpAnswer, photo: KnownPhoto, name: str) -> tuple[Outcome, str]:
    """Classify the answer to the request `name`: right, refused with a reason, or wrong."""
    named = answer.headers.get("x-request-id")
    if answer.status == 503 and not named and "retry-after" in answer.headers:
        return REFUSED, "503 of the proxy"
    if named != name:
        return WRONG, f"{answer.status} with the id {named!r}"
    try:
        body: Any = answer.json
        if answer.status == 200:
            if body["label"] == photo.label and abs(body["probability"] - photo.probability) < _SAME:
                return ANSWERED, "200"
            return WRONG, f"{body['label']} {body['probability']} for {photo.label} {photo.probability}"
        code = body["error"]["code"]
        assert body["error"]["message"]
    except (ValueError, KeyError, TypeError, AssertionError):
        return WRONG, f"{answer.status} without a reason"
    if answer.status in (429, 503) and not answer.headers.get("retry-after", "").isdigit():
        return WRONG, f"{answer.status} {code} without Retry-After"
    return (WRONG if code == "internal" else REFUSED), f"{answer.status} {code}"


def learn(url: str, photos: Sequence[bytes]) -> list[KnownPhoto]:
    """Return the answer to each photo, sent alone; the answers must differ, so that a mix-up shows."""
    known = []
    for data in photos:
        answer = Site(urlsplit(url).port or 80).predict(data)
        assert answer.status == 200, answer.body
        known.append(KnownPhoto(data, answer.json["label"], answer.json["probability"]))
    apart = {(photo.label, round(photo.probability / _SAME / 2)) for photo in known}
    assert len(apart) > len(known) / 2, f"too much alike to tell a mix-up: {apart}"
    return known
