"""Every word that the server's pages say, in one place: to translate them, translate this module.

Templates write `t('id')`, or `t('id', name=value)` where the text has a `{name}`. What a text and its
values hold is shown as text; a text whose id ends in `_html` may hold markup, its values still not.
"""

from __future__ import annotations

from typing import Final

from flask import Flask
from markupsafe import Markup

LANGUAGE: Final = "en"

TEXTS: Final[dict[str, str]] = {
    "site.name": "GourmetGram",
    "api.title": "API",
    "api.document": "The same for programs, as OpenAPI 3.1:",
    "api.examples": "Examples",
    "api.example": "Example in {language}",
    "api.sample_answer": "An answer",
    "api.limits": "Limits and refusals",
    "api.sizes": "A call may have up to {photos} photos of up to {photo_mb} MB each, {call_mb} MB in all.",
    "api.keys": "A key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`.",
    "api.rate": "A client may send {requests} photos or other requests in {seconds} s; the header "
    "`RateLimit` tells what is left of them. Beyond that the answer is 429, with `Retry-After`.",
    "api.errors": "What is refused as a whole is answered by an `Error` with the status of its kind. Of "
    "several photos in one call, each that fails has its own error and the status stays 200, unless the "
    "server is to blame for every one; a single photo has the status of its own error.",
    "api.addresses": "Addresses",
    "api.request": "Request",
    "api.optional": "optional",
    "api.answers": "Answers",
    "api.shapes": "Shapes",
}


def t(text_id: str, **values: object) -> str:
    """The text of that id with its values put in; an id that is not there is a KeyError, not a blank."""
    text = TEXTS[text_id]
    if text_id.endswith("_html"):
        return Markup(text).format(**values)
    return text.format(**values) if values else text


def init_app(app: Flask) -> None:
    app.jinja_env.globals.update(t=t, language=LANGUAGE)
