"""How answers travel: static files cached for good under their hash, text compressed.

Flask-Compress does the second too, with zstd and a cache of its own; these are a few lines, and
brotli is here already because Triton's client brings it.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any, Final

import brotli  # type: ignore[import-untyped]
from flask import Flask, Response, request

_TEXT: Final = ("text/", "application/json", "application/javascript", "image/svg+xml")
# Below it, the packet is not smaller by any network's count.
_MIN_BYTES: Final = 600
_BROTLI_QUALITY: Final = 5
_GZIP_LEVEL: Final = 6
_FOREVER: Final = "public, max-age=31536000, immutable"


class Hashes:
    """The hash of each static file, computed again when the file changed."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._known: dict[str, tuple[tuple[int, int], str]] = {}

    def of(self, name: str) -> str:
        try:
            file = self._folder / name
            state = file.stat()
            changed = (state.st_mtime_ns, state.st_size)
            known = self._known.get(name)
            if known is None or known[0] != changed:
                known = changed, hashlib.sha256(file.read_bytes()).hexdigest()[:12]
                self._known[name] = known
            return known[1]
        except OSError:
            return ""


def init_app(app: Flask) -> None:
    hashes = Hashes(str(app.static_folder))

    @app.url_defaults
    def add_hash(endpoint: str, values: dict[str, Any]) -> None:
        if endpoint == "static" and "v" not in values:
            values["v"] = hashes.of(values.get("filename", ""))

    @app.after_request
    def deliver(response: Response) -> Response:
        if request.endpoint == "static" and response.status_code in (200, 304):
            name = (request.view_args or {}).get("filename", "")
            by_hash = request.args.get("v") == hashes.of(name) != ""
            response.headers["Cache-Control"] = _FOREVER if by_hash else "no-cache"
        return _compress(response)


def _compress(response: Response) -> Response:
    if not (response.mimetype or "").startswith(_TEXT) or response.status_code in (204, 206, 304):
        return response
    response.vary.add("Accept-Encoding")
    if (response.content_length or 0) < _MIN_BYTES or "Content-Encoding" in response.headers:
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
        response.set_etag(etag, weak=True)  # other bytes than those that it was made for
    return response
