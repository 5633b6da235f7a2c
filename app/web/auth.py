"""Access to /api/v1 if API_KEYS is set: for programs with a key, and for the app's own page.

Everybody who reaches the page may use it, so keys do not protect the models. They make programs use the
address that counts them. The page's script calls the API too: opening the page sets a cookie that is valid
for a day. Other sites cannot use this cookie, and scripts cannot read it.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from flask import Flask, Request, Response, g, request
from itsdangerous import BadData, TimestampSigner

from app.web.errors import ServingError
from app.web.http import API, FOR_PROGRAMS, options_of_route
from app.web.settings import Settings

PASS: Final = "gourmet-page"  # noqa: S105 - a cookie's name
_PASS_AGE_S: Final = 24 * 3600


def init_app(app: Flask, settings: Settings) -> None:
    if not settings.api_keys:
        return
    digests = [_digest(key) for key in settings.api_keys]
    # The signer uses the keys, so that all workers have the same one and a changed key ends all passes.
    signer = TimestampSigner(b"".join(digests), salt="page")

    @app.before_request
    def check_api_key() -> None:
        if (
            not request.path.startswith(FOR_PROGRAMS)
            or options_of_route().open
            or request.method == "OPTIONS"
        ):
            return
        key = _sent_key()
        if has_key(settings):
            g.client = _digest(key or "").hex()
        elif key is not None or not _passes(signer, request):
            raise ServingError(
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
    """Return True if the request has one of the API's keys."""
    digest = _digest(_sent_key() or "")
    # Compare all keys, so that the time does not reveal which one matched.
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
