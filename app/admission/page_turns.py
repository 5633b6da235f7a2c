"""A turn for each page that is made: of a client that is not alone one at a time, and a rest after each.

A page is a few milliseconds of one processor, which all threads of a worker share. A client that asks for the
next one at once would have most of it, and the pages of others would wait for its threads again and again.
"""

from __future__ import annotations

import time
from typing import Final

from flask import g, request

from app.admission.queue import AdmissionQueue
from app.core.http import API, marks

# After a page, for a client that keeps others from theirs: so many times as long as the page took.
_REST: Final = 3
# A rest that is longer than any page takes.
_LONGEST_REST_S: Final = 0.1


def begin(queue: AdmissionQueue, client: str) -> None:
    if _is_page():
        queue.acquire(client)
        g.page_of = client, time.monotonic()


def end(queue: AdmissionQueue) -> None:
    """However the request ended. The rest delays the answer to the client that has the next page waiting."""
    client, began = g.pop("page_of")
    if queue.is_pressed_by(client):
        time.sleep(min(_REST * (time.monotonic() - began), _LONGEST_REST_S))
    queue.release(client)


def _is_page() -> bool:
    """Whether it is a page, and not a probe or a part of the API."""
    told = marks()
    return not (told.admitted or told.probe or told.charged or request.path.startswith(API))
