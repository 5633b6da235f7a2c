"""The API's documentation: the OpenAPI document, and the same for people, rendered here.

A page of our own and not Swagger's or Redoc's: those are a megabyte of script with inline styles, which
the app's content policy forbids.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Response, current_app, jsonify, render_template, request
from markupsafe import Markup, escape

from app.api.openapi import document
from app.api.sample_answer import RESULTS
from app.settings import Settings
from app.web import API

_EXAMPLES: Final = Path(__file__).parent / "examples"
# The address in the examples as they lie there, so that each runs as it is; shown is the reader's own.
_EXAMPLE_BASE: Final = "http://localhost:5000"
_LANGUAGES: Final = {"curl": "curl.txt", "Python": "python.txt", "JavaScript": "javascript.txt"}
# The operations that have examples, each in a folder of its name.
_SHOWN: Final = ("classify", "explain", "digits")


def blueprint(settings: Settings) -> Blueprint:
    routes = Blueprint("docs", __name__)

    @cache
    def made() -> dict[str, Any]:
        return document(current_app._get_current_object(), settings)  # type: ignore[attr-defined]

    @routes.get(f"{API}openapi.json")
    def openapi() -> Response:
        return jsonify(made())

    @routes.get("/api/docs")
    def docs() -> str:
        base = request.url_root.rstrip("/")
        return render_template(
            "api_docs.html",
            document=made(),
            examples=_examples(made()["paths"], base),
            answer=json.dumps(RESULTS.as_dict(), indent=2),
            keys=bool(settings.api_keys),
            rate=settings.rate_limit,
            settings=settings,
        )

    routes.add_app_template_filter(prose)
    routes.add_app_template_filter(type_of)
    return routes


def _examples(paths: dict[str, Any], base: str) -> dict[str, dict[str, str]]:
    """By what they do, which is the operation's summary, and then by language."""
    return {
        paths[f"{API}{name}"]["post"]["summary"]: {
            language: (_EXAMPLES / name / file).read_text().replace(_EXAMPLE_BASE, base).strip()
            for language, file in _LANGUAGES.items()
        }
        for name in _SHOWN
        if f"{API}{name}" in paths
    }


def prose(text: str) -> Markup:
    """Text with `code` between backticks as HTML."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - of our own files


def type_of(schema: dict[str, Any]) -> Markup:
    """A JSON Schema's type in a few words, with links to the shapes that it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return Markup('<a href="#{0}">{0}</a>').format(name)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return Markup(" or ").join(type_of(one) for one in schema[several])
    if schema.get("type") == "array":
        return Markup("list of {}").format(type_of(schema.get("items", {})))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Markup(" or ").join(Markup("<code>{}</code>").format(_json(value)) for value in values)
    if "contentMediaType" in schema:
        return Markup("bytes")
    return escape(schema.get("type", "anything"))


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
