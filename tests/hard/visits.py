"""All but well-formed photos for /predict, in turn: pages, API, health, and files that are no photos."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from itertools import cycle
from urllib.parse import urlsplit

from support import hostile
from support.accounting import ANSWERED, REFUSED, SILENT, WRONG, Attempt, Outcome
from support.repeating import Repeating
from support.stack import SAMPLES
from support.web_app import Site

_PAGES = ("/", "/digits", "/compare", "/lab", "/lab/figures", "/api/docs", "/sample.jpg", "/test")
_NUMBERS = ("/healthz", "/readyz", "/metrics", "/api/v1/models", "/api/v1/health", "/api/v1/openapi.json")
_JSON = {"Accept": "application/json"}


class Visits(Repeating):
    """Makes `per_s` of these visits, one after the other, and keeps what became of each."""

    def __init__(self, url: str, per_s: float) -> None:
        super().__init__(self._visit, every_s=1 / per_s)
        self._web = Site(urlsplit(url).port or 80)
        self._next = self._visits()
        self.attempts: list[Attempt] = []

    def _visit(self, *_: int) -> None:
        began = time.monotonic()
        outcome, reason = next(self._next)
        self.attempts.append(Attempt(began, began, time.monotonic(), outcome, reason))

    def _visits(self) -> Iterator[tuple[Outcome, str]]:
        sample = SAMPLES[0].read_bytes()
        for number, path in enumerate(cycle((*_PAGES, *_NUMBERS))):
            yield self._tell(HTTPStatus.OK, "GET", path, None)
            yield self._tell(HTTPStatus.NOT_FOUND, "GET", "/no-such-page", None, **_JSON)
            yield self._tell(HTTPStatus.OK, "POST", "/api/v1/classify", sample, Content_Type="image/jpeg")
            yield self._tell(HTTPStatus.OK, "POST", "/api/v1/digits", sample, Content_Type="image/jpeg")
            what, data = hostile.file(number)
            yield self._tell(None, "POST", "/api/v1/classify", data, what=what, Content_Type="image/jpeg")

    def _tell(
        self, wanted: int | None, method: str, path: str, body: bytes | None, what: str = "", **headers: str
    ) -> tuple[Outcome, str]:
        """Make one visit; `wanted` is its right status, None where any below 500 is."""
        try:
            reply = self._web.request(method, path, body, **headers)
        except OSError as exc:
            return SILENT, f"{method} {path}: {exc!r}"
        status = reply.status
        if status != wanted and (wanted is not None or status >= HTTPStatus.INTERNAL_SERVER_ERROR):
            return WRONG, f"{method} {path} {what}: {status}"
        if status == HTTPStatus.OK:
            return ANSWERED, "200"
        try:
            result = reply.json.get("results", [reply.json])[0]
            return REFUSED, f"{status} {result['error']['code']}"
        except (ValueError, LookupError, TypeError):
            return WRONG, f"{method} {path} {what}: {status} without a reason: {reply.body[:80]!r}"
