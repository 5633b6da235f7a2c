"""Common parts of requests and responses: an id, security headers, JSON or HTML, caching, compression.

Static files are cached forever under their hash. Flask-Compress, with its own cache, takes longer for the
small answers that need no compression.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeVar, cast

from flask import Flask, Request, Response, current_app, g, jsonify, render_template, request
from multipart import MultipartParser, ParserLimitReached  # type: ignore[import-untyped]
from pydantic import BaseModel
from werkzeug.datastructures import FileStorage, MultiDict
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from app.web.settings import Settings

API: Final = "/api/v1/"
PROTOCOL: Final = "/v2/"  # the Open Inference Protocol
FOR_PROGRAMS: Final = (API, PROTOCOL)  # keys and the rate limit hold there
JSON: Final = "application/json"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")

# No inline scripts or styles, nothing from elsewhere; blob: is the preview of the chosen photo.
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Send other sites no referrer. With `no-referrer` the page's own form would have the origin `null`.
    "Referrer-Policy": "same-origin",
    # The live camera of the pages that classify.
    "Permissions-Policy": "camera=(self), geolocation=(), microphone=(), payment=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_TEXT: Final = ("text/", "application/json", "application/javascript", "image/svg+xml")
# Below this, compressing saves no packet.
_MIN_BYTES: Final = 600
# As much as gunicorn reads from a socket at once. It keeps the rest of a smaller piece, and copies that rest
# again for every piece that is read.
_FORM_CHUNK_BYTES: Final = 1 << 20
_Form = tuple[IO[bytes], MultiDict[str, str], MultiDict[str, FileStorage]]
_FOREVER: Final = "public, max-age=31536000, immutable"

# The kinds of requests that wait for places, each in a queue of its own.
ADMITTED: Final = ("photos", "texts", "heat maps")

View = TypeVar("View", bound=Callable[..., Any])


@dataclass(frozen=True)
class RouteOptions:
    """What a request passes before its view, and how it is logged."""

    admitted: Literal["", "photos", "texts", "heat maps"] = ""  # waits in the queue of this kind
    charged: bool = False  # counts against the rate limit, as every route of the API does
    open: bool = False  # a route of the API without rate limit and key
    probe: bool = False  # polled: logged only if something is wrong


_NO_OPTIONS: Final = RouteOptions()


def route_options(**options: Any) -> Callable[[View], View]:
    def add(view: View) -> View:
        view.route_options = RouteOptions(**options)  # type: ignore[attr-defined]
        return view

    return add


def options_of_route(view: object = None) -> RouteOptions:
    """Return the options of `view`, or of the view that answers this request."""
    view = view or current_app.view_functions.get(request.endpoint or "")
    return cast(RouteOptions, getattr(view, "route_options", _NO_OPTIONS))


def request_id() -> str:
    return str(g.request_id)


def route() -> str:
    """Return the pattern of the request's path, since a path may contain anything."""
    return request.url_rule.rule if request.url_rule else "unknown"


def since_start_ms() -> float:
    return (time.perf_counter() - float(g.started)) * 1000


def phases_ms(inner: Mapping[str, float], wait_ms: float | None = None) -> dict[str, float]:
    """Return the phases of the request that ends now, in order, with `inner` between its own."""
    in_line_ms = float(g.get("line_ms", 0.0))
    waited = {"wait": in_line_ms + (wait_ms or 0.0)} if in_line_ms or wait_ms is not None else {}
    return {"receive": float(g.get("receive_ms", 0.0)), **waited, **inner, "total": since_start_ms()}


def render(
    template: str, data: Callable[[], BaseModel | Mapping[str, Any]], status: int = 200, **context: Any
) -> Response:
    """Answer with `data` as JSON, or with `template` as a fragment or a page, as the client prefers."""
    if shape := _layout():
        response = Response(render_template(template, layout=shape, request_id=request_id(), **context))
    else:
        response = as_json(data())
    response.status_code = status
    response.headers["Cache-Control"] = "no-store"
    response.vary.update(("Accept", "X-Requested-With"))
    return response


def as_json(body: BaseModel | Mapping[str, Any]) -> Response:
    """Answer with `body` as JSON. Pydantic writes a schema directly: a dict in between doubles the cost."""
    if isinstance(body, BaseModel):
        return Response(body.model_dump_json(exclude_none=True) + "\n", mimetype=JSON)
    return jsonify(body)


def unstored(body: BaseModel) -> Response:
    """Answer with `body` as JSON that clients must not store."""
    response = as_json(body)
    response.headers["Cache-Control"] = "no-store"
    return response


def is_for_visitor() -> bool:
    """Return whether a page or its script asked, and not a program."""
    return "X-Requested-With" in request.headers or _layout() is not None


def _layout() -> str | None:
    """Return the template around an HTML answer to this request, or None for JSON.

    A browser that navigates names text/html and gets a page. The page's own script names itself in
    X-Requested-With and gets a fragment. The API and clients that accept anything, such as curl, get JSON.
    """
    if request.path.startswith(FOR_PROGRAMS) or request.headers.get("Accept") == JSON:
        return None
    accepted = request.accept_mimetypes
    if "X-Requested-With" in request.headers:
        return None if accepted.best_match(["text/html", JSON]) == JSON else "fragment.html"
    wants_html = "text/html" in accepted.values() and accepted.best_match(["text/html", JSON]) != JSON
    return "page.html" if wants_html else None


class FormParser(FormDataParser):
    """Read forms with `multipart`. Measured, 2026-11-27: 0.05 ms instead of 0.48 for a photo of 60 KB.

    werkzeug looks for the boundary with a regular expression, `multipart` with `bytes.find`. A malformed form
    reads as empty, as with werkzeug. A form with too many parts, or with a text that is too long, is refused
    as too large.
    """

    def parse(
        self,
        stream: IO[bytes],
        mimetype: str,
        content_length: int | None,
        options: dict[str, str] | None = None,
    ) -> _Form:
        if mimetype != "multipart/form-data":
            return super().parse(stream, mimetype, content_length, options)
        parser = MultipartParser(
            stream,
            (options or {}).get("boundary", ""),
            buffer_size=_FORM_CHUNK_BYTES,
            part_limit=self.max_form_parts or math.inf,
            spool_limit=math.inf,  # keep all of it in memory
            memory_limit=math.inf,
        )
        try:
            parts = parser.parts()
        except ParserLimitReached as exc:
            raise RequestEntityTooLarge(str(exc)) from exc
        except ValueError:
            return stream, MultiDict(), MultiDict()
        texts = [part for part in parts if part.filename is None]
        longest = self.max_form_memory_size or math.inf
        if any(part.size > longest for part in texts):
            raise RequestEntityTooLarge(f"a text in the form is longer than {longest} bytes")
        files = [part for part in parts if part.filename is not None]
        return (
            stream,
            MultiDict((part.name, part.raw.decode(errors="replace")) for part in texts),
            MultiDict((part.name, FileStorage(part.file, part.filename, part.name)) for part in files),
        )


class UploadRequest(Request):
    """A request that keeps its files in memory; the limit on bytes keeps them small."""

    form_data_parser_class = FormParser


@cache
def _hashes(static: Path) -> dict[str, str]:
    """Return the hash of each static file, by its name."""
    return {
        file.relative_to(static).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        for file in static.rglob("*")
        if file.is_file()
    }


def init_app(app: Flask, _: Settings) -> None:
    app.request_class = UploadRequest
    hashes = _hashes(Path(str(app.static_folder)))

    @app.url_defaults
    def add_hash(endpoint: str, values: dict[str, Any]) -> None:
        if endpoint == "static" and "v" not in values:
            values["v"] = hashes.get(values.get("filename", ""), "")

    def finish(response: Response) -> Response:
        response.headers["X-Request-ID"] = request_id()
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if request.endpoint == "static" and response.status_code in (200, 304):
            name = (request.view_args or {}).get("filename", "")
            by_hash = name in hashes and request.args.get("v") == hashes[name]
            response.headers["Cache-Control"] = _FOREVER if by_hash else "no-cache"
        return _compressed(response)

    app.before_request(_begin)
    app.before_request(_check_parameters)
    app.after_request(finish)


def _begin() -> None:
    g.started = time.perf_counter()
    sent_id = request.headers.get("X-Request-ID", "")
    g.request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else os.urandom(16).hex()


def _check_parameters() -> None:
    if not request.query_string:
        return
    view = current_app.view_functions.get(request.endpoint or "")
    allowed: Collection[str] = getattr(view, "parameters", request.args)
    for name in request.args:
        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise BadRequest(f"{name[:50]!r} is not a parameter of {request.path}; allowed: {known}")


def _compressed(response: Response) -> Response:
    is_text = (response.mimetype or "").startswith(_TEXT) and "Content-Encoding" not in response.headers
    is_short = (response.content_length or 0) < _MIN_BYTES
    if not is_text or is_short or response.status_code in (204, 206, 304):
        return response
    response.vary.add("Accept-Encoding")
    if not request.accept_encodings.best_match(["gzip"]):
        return response
    response.direct_passthrough = False
    compress = _compress_once if request.endpoint == "static" else _compress
    response.set_data(compress(response.get_data()))
    response.headers["Content-Encoding"] = "gzip"
    if etag := response.get_etag()[0]:
        response.set_etag(etag, weak=True)  # the compressed bytes differ from those of the tag
    return response


def _compress(text: bytes) -> bytes:
    return gzip.compress(text, 6, mtime=0)


# Measured: 86 ms for the script of the API's page.
_compress_once: Final = lru_cache(64)(_compress)
