"""The refusal of a request by its first bytes, in the loop that accepts connections.

Through a thread and Flask a refusal takes five times as much of the CPU, which the photos then lack
(docs/reliability.md). It is only for programs that ask for a photo to be looked at and say how long their
request is: the answer is the same bytes for all of them but for the request's id.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Final

from flask import Flask

from app.core.errors import Overloaded
from app.core.http import API, marks_of
from app.core.metrics import Metrics

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,12})\r\n", re.I)
_REQUEST_ID: Final = re.compile(rb"\r\nx-request-id: *([A-Za-z0-9._:-]{1,64})\r\n", re.I)
_WANTS_JSON: Final = re.compile(rb"\r\naccept: *application/json *\r\n", re.I)
# Another site's script may read the answer only if it says so, which is for `hosts_and_cors` to know.
_ORIGIN: Final = re.compile(rb"\r\norigin:", re.I)
_ANSWER: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nX-Request-ID: %b\r\n"
    b"Retry-After: %d\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b%b%b"
)
# What is around the request's id, which has no character that JSON would write in another way.
_BEFORE_ID, _AFTER_ID = (
    json.dumps({"error": {"code": Overloaded.code, "message": str(Overloaded("line")), "request_id": "|"}})
    .encode()
    .split(b"|")
)


class EarlyRefusals:
    """What to answer to requests that begin so, while the admission queue is full."""

    def __init__(self, app: Flask, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    @functools.cached_property
    def admitted(self) -> tuple[re.Pattern[bytes], list[str]]:
        """What a request begins with that has to pass the admission queue, a group for each of the routes.

        Looked up when the first request comes, which is when the app has all its routes.
        """
        views = self._app.view_functions
        routes = [
            rule.rule for rule in self._app.url_map.iter_rules() if marks_of(views[rule.endpoint]).admitted
        ]
        # What a route has between < and > may be anything within its part of the path.
        paths = ["[^/? ]+".join(map(re.escape, re.split(r"<[^>]+>", route))) for route in routes]
        groups = "|".join(f"({path})" for path in paths)
        return re.compile(f"POST (?:{groups})[? ]".encode()), routes

    def refusal(self, head: bytes) -> tuple[bytes, int] | None:
        """The whole answer and the bytes of the request; None where Flask has to look at it more closely."""
        pattern, routes = self.admitted
        match = pattern.match(head)
        end = head.find(b"\r\n\r\n") + 2
        length = _LENGTH.search(head, 0, end)
        if match is None or length is None or _ORIGIN.search(head, 0, end):
            return None
        route = routes[(match.lastindex or 1) - 1]
        if not (route.startswith(API) or _WANTS_JSON.search(head, 0, end)):
            return None
        given = _REQUEST_ID.search(head, 0, end)
        name = given[1] if given else os.urandom(16).hex().encode()
        self._metrics.refusals.labels("line").inc()
        self._metrics.requests.labels(route, "POST", Overloaded.status).inc()
        nbytes = len(_BEFORE_ID) + len(name) + len(_AFTER_ID)
        body = (_BEFORE_ID, name, _AFTER_ID)
        return _ANSWER % (name, Overloaded.retry_after_s, nbytes, *body), end + 2 + int(length[1])
