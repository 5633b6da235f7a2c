"""All text of the pages, in each language: app/texts.toml, and app/texts.ru.toml for Russian.

Templates write `t('id')`, or `t('id', name=value)` if the text has a `{name}`. Texts and values are escaped,
so neither is read as markup. A text that a language lacks is English; that of programs always is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from flask import Flask, Response, g, has_request_context, request, url_for
from markupsafe import Markup, escape

from app.web.http import is_for_visitor
from app.web.settings import Settings
from gourmet.pictures import certainty
from gourmet.pictures.certainty import RankedLabels, State, Verdict

_FOLDER: Final = Path(__file__).parents[1]
ENGLISH: Final = "en"
LANGUAGES: Final = {ENGLISH: "English", "ru": "Русский"}
_FOR_ENGINEERS: Final = ("lab", "docs")  # blueprints whose pages are English
_YEAR_S: Final = 365 * 24 * 3600


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_FOLDER / name).read_text(encoding="utf-8"))


TEXTS: Final[dict[str, str]] = _read("texts.toml")
_RUSSIAN: Final = _read("texts.ru.toml")
# What classes, dishes and subjects are called, by their English name.
NAMES: Final[Mapping[str, Mapping[str, str]]] = {ENGLISH: {}, "ru": _RUSSIAN.pop("names")}
# What is said of an answer: see gourmet/pictures/certainty.py.
VERDICTS: Final[Mapping[str, Mapping[str, str]]] = {ENGLISH: certainty.WORDS, "ru": _RUSSIAN.pop("verdict")}
# What an error's code means, in place of its message.
PROBLEMS: Final[Mapping[str, Mapping[str, str]]] = {ENGLISH: {}, "ru": _RUSSIAN.pop("problem")}
# What is doubtful about a translation, by its English: see gourmet/systems/translator/texts.py.
WARNINGS: Final[Mapping[str, Mapping[str, str]]] = {ENGLISH: {}, "ru": _RUSSIAN.pop("warning")}
TRANSLATIONS: Final[Mapping[str, Mapping[str, str]]] = {ENGLISH: TEXTS, "ru": TEXTS | _RUSSIAN}


def language() -> str:
    """Return the language of this request's answer: the one that the visitor chose, or the browser's."""
    if not has_request_context():
        return ENGLISH
    if "language" not in g:
        chosen = [request.args.get("language"), request.cookies.get("language")]
        chosen.append(request.accept_languages.best_match(LANGUAGES, ENGLISH))
        is_english = not is_for_visitor() or request.blueprint in _FOR_ENGINEERS
        g.language = ENGLISH if is_english else next(code for code in chosen if code in LANGUAGES)
    return str(g.language)


def t(text_id: str, **values: object) -> str:
    """Return the text of this id with its values; raise KeyError for an unknown id."""
    text = TRANSLATIONS[language()][text_id]
    return text.format(**{key: name(value) for key, value in values.items()}) if values else text


def name(value: object) -> object:
    """Return what a class, a dish or a subject is called; any other value as it is."""
    return names().get(value, value) if isinstance(value, str) else value


def names() -> Mapping[str, str]:
    return NAMES[language()]


def say(answer: RankedLabels) -> Verdict:
    """Return what is said of an answer."""
    return answer.say(VERDICTS[language()], names())


def message_of(code: str, message: str) -> str:
    """Return what an error says to a visitor."""
    return PROBLEMS[language()].get(code, message).replace("{message}", message)


def warning(text: str) -> str:
    """Return the warnings of a system, which are English, in the language of this request."""
    said = []
    for part in text.split("; "):
        for english, translated in WARNINGS[language()].items():
            if found := re.fullmatch(re.sub(r"\\{\w+\\}", "(.+)", re.escape(english)), part):
                part = re.sub(r"\{\w+\}", lambda _, found=found: found[1], translated)  # type: ignore[misc]
        said.append(part)
    return "; ".join(said)


def marks(subject: str) -> dict[State, tuple[str, str, str]]:
    """Return the sign, the colour and the word of each state."""
    return certainty.marks(str(name(subject)), VERDICTS[language()])


def script_texts(prefix: str = "js.") -> dict[str, str]:
    """Return the texts of a script: those whose ids start with `prefix`, by the rest of their ids."""
    texts = TRANSLATIONS[language()]
    return {key[len(prefix) :]: text for key, text in texts.items() if key.startswith(prefix)}


def soft(text: str) -> Markup:
    """Let a name break after `_`, `-`, `/` and `.`, so that lines do not break inside a word."""
    parts = re.split(r"(?<=[_/.-])(?=.)", str(name(text)))
    return Markup("<wbr>").join(escape(part) for part in parts)


def other_languages() -> dict[str, tuple[str, str]]:
    """Return the address of this page in each other language, with the language's own name."""
    if request.blueprint in _FOR_ENGINEERS:
        return {}
    may_be_asked = request.url_rule and "GET" in (request.url_rule.methods or ())
    path = quote(request.path) if may_be_asked else url_for("food.index")
    kept = [pair for pair in request.args.items(multi=True) if pair[0] != "language" and may_be_asked]
    return {
        code: (f"{path}?{urlencode([*kept, ('language', code)])}", own_name)
        for code, own_name in LANGUAGES.items()
        if code != language()
    }


def init_app(app: Flask, _: Settings) -> None:
    app.jinja_env.filters.update(soft=soft, name=name)
    app.jinja_env.globals.update(
        **{"t": t, "names": names, "say": say, "marks": marks, "message_of": message_of},
        **{"script_texts": script_texts, "language": language, "other_languages": other_languages},
    )

    @app.after_request
    def keep_language(response: Response) -> Response:
        if "language" in g:
            response.vary.update(("Accept-Language", "Cookie"))
            if request.args.get("language") == g.language:
                response.set_cookie(
                    "language", g.language, _YEAR_S, secure=request.is_secure, httponly=True, samesite="Lax"
                )
        return response
