"""Access to /api/v1 where API_KEYS is set: for programs with a key, and for the app's own page.

The page is open to anyone who reaches it, so a key does not keep anyone from the models: it keeps
programs to the address that counts them. The page's script calls the API as well; opening the
page hands its browser a pass for a day, which other sites cannot use and which no script can read.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from flask import Flask, Request, Response, g, request
from itsdangerous import BadData, TimestampSigner

from app.core.errors import RefusedRequest
from app.core.http import API, marks
from app.core.settings import Settings

PASS: Final = "gourmet-page"  # noqa: S105 - a cookie's name
_PASS_AGE_S: Final = 24 * 3600


def init_app(app: Flask, settings: Settings) -> None:
    if not settings.api_keys:
        return
    digests = [_digest(key) for key in settings.api_keys]
    # Made from the keys, so that all workers know it and a changed key ends all passes.
    signer = TimestampSigner(b"".join(digests), salt="page")

    @app.before_request
    def check() -> None:
        if not request.path.startswith(API) or marks().open or request.method == "OPTIONS":
            return
        key = _sent_key()
        if has_key(settings):
            g.client = _digest(key or "").hex()
        elif key is not None or not _passes(signer, request):
            raise RefusedRequest(
                "key_needed",
                "this API key is not known here"
                if key
                else "the API needs a key: send it as "
                "`Authorization: Bearer KEY` or `X-API-Key: KEY` (in the page: load it again)",
            )

    @app.after_request
    def hand_out(response: Response) -> Response:
        if response.mimetype == "text/html" and response.status_code == 200:
            response.set_cookie(
                PASS,
                signer.sign("page").decode(),
                max_age=_PASS_AGE_S,
                path=API,
                httponly=True,
                samesite="Strict",
                secure=request.is_secure,
            )
        return response


def has_key(settings: Settings) -> bool:
    """Return True if the request brings one of the API's keys."""
    digest = _digest(_sent_key() or "")
    # All are compared, so that the time tells nothing about which.
    return sum(hmac.compare_digest(digest, _digest(key)) for key in settings.api_keys) > 0


def _sent_key() -> str | None:
    bearer = request.authorization
    return bearer.token if bearer and bearer.type == "bearer" else request.headers.get("X-API-Key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _passes(signer: TimestampSigner, request: Request) -> bool:
    try:
        return signer.unsign(request.cookies.get(PASS, ""), max_age=_PASS_AGE_S) == b"page"
    except BadData:
        return False
