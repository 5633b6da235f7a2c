"""All text of the pages, from app/texts.toml: to translate the pages, translate that file.

Templates write `t('id')`, or `t('id', name=value)` where the text has a `{name}`. Text and values are shown
as text, never taken for markup.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from flask import Flask
from markupsafe import Markup, escape

from app.core.settings import Settings

_FILE: Final = Path(__file__).parents[1] / "texts.toml"
TEXTS: Final[dict[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))


def t(text_id: str, **values: object) -> str:
    """The text with that id and its values; an unknown id raises KeyError instead of showing nothing."""
    text = TEXTS[text_id]
    return text.format(**values) if values else text


def starting_with(prefix: str) -> dict[str, str]:
    """The texts whose ids start with `prefix`, by the rest of their ids: what a script is given."""
    return {key[len(prefix) :]: text for key, text in TEXTS.items() if key.startswith(prefix)}


def soft(text: str) -> Markup:
    """A name that may break after `_`, `-`, `/` and `.`, so that no line breaks inside a word."""
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[_/.-])(?=.)", text))


def init_app(app: Flask, _: Settings) -> None:
    app.jinja_env.filters["soft"] = soft
    app.jinja_env.globals.update(t=t, language="en")
