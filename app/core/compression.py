"""Compression and caching of responses: static files cached for good under their hash, text compressed.

Flask-Compress does the second too, with zstd and a cache of its own, and takes longer for the small answers
that need none (docs/performance.md); these are a few lines, and brotli is a dependency of Triton's client.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any, Final

import brotli  # type: ignore[import-untyped]
from flask import Flask, Response, request

from app.core.settings import Settings

_TEXT: Final = ("text/", "application/json", "application/javascript", "image/svg+xml")
# Below this, compressing saves no packet.
_MIN_BYTES: Final = 600
_BROTLI_QUALITY: Final = 5
_GZIP_LEVEL: Final = 6
_FOREVER: Final = "public, max-age=31536000, immutable"


def init_app(app: Flask, _: Settings) -> None:
    static = Path(str(app.static_folder))
    hashes = {
        file.relative_to(static).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        for file in static.rglob("*")
        if file.is_file()
    }

    @app.url_defaults
    def add_hash(endpoint: str, values: dict[str, Any]) -> None:
        if endpoint == "static" and "v" not in values:
            values["v"] = hashes.get(values.get("filename", ""), "")

    @app.after_request
    def deliver(response: Response) -> Response:
        if request.endpoint == "static" and response.status_code in (200, 304):
            name = (request.view_args or {}).get("filename", "")
            by_hash = name in hashes and request.args.get("v") == hashes[name]
            response.headers["Cache-Control"] = _FOREVER if by_hash else "no-cache"
        return _compress(response)


def _compress(response: Response) -> Response:
    if (response.content_length or 0) < _MIN_BYTES or response.status_code in (204, 206, 304):
        return response
    if not (response.mimetype or "").startswith(_TEXT):
        return response
    response.vary.add("Accept-Encoding")
    if "Content-Encoding" in response.headers:
        return response
    encoding = request.accept_encodings.best_match(["br", "gzip"])
    if encoding is None:
        return response
    response.direct_passthrough = False
    data = response.get_data()
    if encoding == "br":
        packed = brotli.compress(data, quality=_BROTLI_QUALITY)
    else:
        packed = gzip.compress(data, _GZIP_LEVEL, mtime=0)
    response.set_data(packed)
    response.headers["Content-Encoding"] = encoding
    etag, _ = response.get_etag()
    if etag is not None:
        response.set_etag(etag, weak=True)  # the bytes are not those that it was made for
    return response
