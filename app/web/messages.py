"""All text of the pages, from app/texts.toml: to translate the pages, translate that file.

Templates write `t('id')`, or `t('id', name=value)` if the text has a `{name}`. Texts and values are escaped,
so neither is read as markup.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from flask import Flask
from markupsafe import Markup, escape

from app.web.settings import Settings

_FILE: Final = Path(__file__).parents[1] / "texts.toml"
TEXTS: Final[dict[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))


def t(text_id: str, **values: object) -> str:
    """Return the text of this id with its values; raise KeyError for an unknown id."""
    text = TEXTS[text_id]
    return text.format(**values) if values else text


def starting_with(prefix: str) -> dict[str, str]:
    """Return the texts of a script: those whose ids start with `prefix`, by the rest of their ids."""
    return {key[len(prefix) :]: text for key, text in TEXTS.items() if key.startswith(prefix)}


def soft(text: str) -> Markup:
    """Let a name break after `_`, `-`, `/` and `.`, so that lines do not break inside a word."""
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[_/.-])(?=.)", text))


def init_app(app: Flask, _: Settings) -> None:
    app.jinja_env.filters["soft"] = soft
    app.jinja_env.globals.update(t=t, language="en")
