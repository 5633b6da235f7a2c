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
}


def t(text_id: str, **values: object) -> str:
    """The text of that id with its values put in; an id that is not there is a KeyError, not a blank."""
    text = TEXTS[text_id]
    if text_id.endswith("_html"):
        return Markup(text).format(**values)
    return text.format(**values) if values else text


def init_app(app: Flask) -> None:
    app.jinja_env.globals.update(t=t, language=LANGUAGE)
