"""The host names that the app answers to, trusted proxies, and other sites' pages (CORS)."""

from __future__ import annotations

import re
from typing import Final

from flask import Flask, Response, request
from werkzeug.middleware.proxy_fix import ProxyFix

from app.core.errors import RefusedRequest
from app.core.http import API
from app.core.settings import Settings

# Health checks of containers use these, whatever the app's public name is.
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:\d{1,5})?")
_PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-API-Key, X-Request-ID",
    "Access-Control-Max-Age": "600",
}
_READABLE: Final = "RateLimit, RateLimit-Policy, Retry-After, Server-Timing, X-Request-ID"


def init_app(app: Flask, settings: Settings) -> None:
    if settings.trusted_proxies:
        hops = settings.trusted_proxies
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops)  # type: ignore[method-assign]
    if settings.trusted_hosts:
        trusted = [*settings.trusted_hosts, *_LOOPBACK]

        @app.before_request
        def check_host() -> None:
            if not _goes_by(request.headers.get("Host", ""), trusted):
                raise RefusedRequest(
                    "wrong_host", "this app does not go by the name in the request's Host header"
                )

    if settings.cors_origins:
        app.after_request(lambda response: _share(response, settings.cors_origins))


def _goes_by(host: str, names: list[str]) -> bool:
    """Whether `host`, with a port or without, is one of `names`; `.b.c` stands for b.c and all below it.

    werkzeug's own check knows neither capitals nor addresses of IPv6.
    """
    match = _HOST.fullmatch(host.lower())
    if match is None:
        return False
    wanted = (name.lower() for name in names)
    return any(
        match[1] == name.lstrip(".") or (name[0] == "." and match[1].endswith(name)) for name in wanted
    )


def _share(response: Response, origins: tuple[str, ...]) -> Response:
    """Let scripts of other sites' pages read the API's answers; cookies are never asked for."""
    if not request.path.startswith(API):
        return response
    response.vary.add("Origin")
    origin = request.headers.get("Origin", "")
    if origin and (origin in origins or "*" in origins):
        response.headers["Access-Control-Allow-Origin"] = "*" if "*" in origins else origin
        response.headers["Access-Control-Expose-Headers"] = _READABLE
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            response.headers.update(_PREFLIGHT)
    return response
