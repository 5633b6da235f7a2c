"""What every request and response has in common: an id, security headers, JSON or HTML."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from flask import Flask, Response, g, jsonify, render_template, request

API: Final = "/api/v1/"

READ_BODIES: Final = frozenset(
    {"food.predict", "pages.compare_photo", "digits.read", "api.classify", "api.explain", "api.digits"}
)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")

# No inline scripts or styles, nothing from elsewhere; blob: is the preview of the chosen photo.
_HEADERS: Final = tuple(
    {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        # Taking a photo through a file input needs no permission; a camera in the page would be its own.
        "Permissions-Policy": "camera=(self), geolocation=(), microphone=(), payment=()",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }.items()
)


def request_id() -> str:
    return str(g.request_id)


def since_start_ms() -> float:
    return (time.perf_counter() - float(g.started)) * 1000


def render(template: str, data: Mapping[str, Any], status: int = 200, **context: Any) -> Response:
    """`data` as JSON, or `template` with `context` as a fragment or a whole page, as the client prefers."""
    if shape := layout():
        response = Response(render_template(template, layout=shape, request_id=request_id(), **context))
    else:
        response = jsonify(data)
    response.status_code = status
    response.headers["Cache-Control"] = "no-store"
    response.vary.update(["Accept", "X-Requested-With"])
    return response


def layout() -> str | None:
    """The layout of an answer to this request; None where it is JSON.

    A browser that navigates names text/html and gets a page; the page's own script names itself in
    X-Requested-With and, like curl, gets the fragment only.
    """
    if wants_json():
        return None
    navigates = "text/html" in request.accept_mimetypes.values() and "X-Requested-With" not in request.headers
    return "page.html" if navigates else "fragment.html"


def wants_json() -> bool:
    """Whether the answer is for a program: the API speaks nothing but JSON."""
    preferred = request.accept_mimetypes.best_match(["text/html", "application/json"])
    return request.path.startswith(API) or preferred == "application/json"


def init_app(app: Flask) -> None:
    app.before_request(_begin)
    app.after_request(finish)


def _begin() -> None:
    g.started = time.perf_counter()
    given = request.headers.get("X-Request-ID", "")
    g.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def finish(response: Response) -> Response:
    """Give it what every answer carries."""
    response.headers["X-Request-ID"] = request_id()
    # One by one with `setdefault`, each would be compared with all that are there, in small letters.
    given = {name for name, _ in response.headers}
    response.headers.extend([header for header in _HEADERS if header[0] not in given])
    # A body where none is looked for would be read to its end, however long, before the next request.
    if request.endpoint not in READ_BODIES and (
        request.content_length or "Transfer-Encoding" in request.headers
    ):
        response.headers["Connection"] = "close"
    return response
