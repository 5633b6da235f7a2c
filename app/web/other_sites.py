"""The app's host names, trusted proxies, and the rights of other sites' pages (CORS).

A page of another site can make a visitor's browser send a form here, which needs no CORS. Its site can also
point its own name here (DNS rebinding); the browser then takes both for one site. So the app answers only to
its own names. It refuses requests other than GET, HEAD and OPTIONS from pages of another origin.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache, partial
from typing import Final

from flask import Flask, Response, request
from werkzeug.middleware.proxy_fix import ProxyFix

from app.web.errors import ServingError
from app.web.http import API
from app.web.settings import Settings

_MAX_HOST_CHARACTERS: Final = 100
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
    origins = settings.cors_origins
    is_own_host = lru_cache(64)(partial(_is_own_host, settings.trusted_hosts))

    @app.before_request
    def check_sender() -> None:
        environ = request.environ
        host = environ.get("HTTP_HOST")
        if not is_own_host(host, environ["SERVER_NAME"]):
            raise ServingError("wrong_host", _wrong_host(host or ""))
        if request.method in ("GET", "HEAD", "OPTIONS"):
            return
        origin = environ.get("HTTP_ORIGIN", "")
        may_share = request.path.startswith(API) and _is_allowed(origin, origins)
        if _is_of_another_site(host, environ.get("HTTP_SEC_FETCH_SITE"), origin) and not may_share:
            raise ServingError(
                "cross_site",
                "a page of another site sent this: use this app's own page, or name that site's origin in "
                "CORS_ORIGINS for the API",
            )

    if origins:
        app.after_request(lambda response: _share(response, origins))


def _is_own_host(names: tuple[str, ...], host: str | None, bound: str) -> bool:
    """Return True if a request is for one of `names`, for localhost, or for an address of the app.

    `.b.c` means b.c and all names below it. Flask's own TRUSTED_HOSTS refuses capitals, IPv6 addresses, and
    the address that the app listens at. Another site can point its name here, but not an address. So an app
    that listens at all addresses answers to any address. A request without the header, as in HTTP/1.0, does
    not come from a browser.
    """
    if host is None:
        return True
    match = _HOST.fullmatch(host.lower())
    if match is None:
        return False
    name = match[1]
    for own in map(str.lower, ("localhost", *names)):
        if name == own.lstrip(".") or (own[0] == "." and name.endswith(own)):
            return True
    requested, bound_to = _address(name), _address(bound)
    return requested is not None and (
        requested.is_loopback or (bound_to is not None and (bound_to.is_unspecified or bound_to == requested))
    )


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


def _wrong_host(host: str) -> str:
    match = _HOST.fullmatch(host[:_MAX_HOST_CHARACTERS].lower())
    if match is None:
        return "the request's Host header is not the name of a host"
    return (
        f"this app does not answer to the name {match[1]}: ask for it as localhost, or start it with "
        f"TRUSTED_HOSTS={match[1]}"
    )


def _is_of_another_site(host: str | None, site: str | None, origin: str) -> bool:
    """Return True if a page of another origin sent this request.

    Over TLS and on localhost, browsers send Sec-Fetch-Site, which scripts cannot change. Otherwise the
    page's origin has to match the request's host. A page of another port or subdomain (`same-site`) counts
    as another site.
    """
    if site:
        return site not in ("same-origin", "none")
    own = (host or "").lower()
    return origin.lower() not in ("", f"http://{own}", f"https://{own}")


def _is_allowed(origin: str, origins: tuple[str, ...]) -> bool:
    """Return True if the settings let pages of `origin` use the API."""
    return "*" in origins or origin in origins


def _share(response: Response, origins: tuple[str, ...]) -> Response:
    """Let scripts of allowed origins read the API's answers, without cookies."""
    if not request.path.startswith(API):
        return response
    response.vary.add("Origin")
    origin = request.headers.get("Origin", "")
    if origin and _is_allowed(origin, origins):
        response.headers["Access-Control-Allow-Origin"] = "*" if "*" in origins else origin
        response.headers["Access-Control-Expose-Headers"] = _READABLE
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            response.headers.update(_PREFLIGHT)
    return response
