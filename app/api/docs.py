"""The API's documentation: the OpenAPI document, and the same for people, rendered here.

A page of our own and not Swagger's or Redoc's: those are a megabyte of script with inline styles, which
the app's content policy forbids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from flask import Blueprint, Flask, Response, jsonify, render_template, request
from markupsafe import Markup, escape

from app.api.openapi import document, examples_of
from app.core.http import API, marked
from app.core.messages import starting_with, t
from app.features.feature import NavigationEntry, Services

# The address in the examples as they lie there, so that each runs as it is; shown is the reader's own.
_EXAMPLE_BASE: Final = "http://localhost:5000"
_LANGUAGES: Final = {"curl": "curl.txt", "Python": "python.txt", "JavaScript": "javascript.txt"}


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes, settings = Blueprint("docs", __name__), services.settings

    @cache
    def made() -> dict[str, Any]:
        return document(app, settings)

    @routes.get(f"{API}openapi.json")
    @marked(open=True)
    def openapi() -> Response:
        return jsonify(made())

    @routes.get("/api/docs")
    def docs() -> str:
        return render_template(
            "api_docs.html",
            document=made(),
            examples=_examples(made(), request.url_root.rstrip("/")),
            settings=settings,
            texts=starting_with("api.js."),
        )

    routes.add_app_template_filter(prose)
    app.register_blueprint(routes)
    return [NavigationEntry("docs.docs", t("nav.api"))]


def _examples(document: dict[str, Any], base: str) -> list[tuple[str, dict[str, str], str]]:
    """What a client's code can do, its code by language and, if there is one, a sample of an answer."""
    found = []
    for operation in (each for methods in document["paths"].values() for each in methods.values()):
        folder = examples_of(operation["operationId"])
        if folder.is_dir():
            code = {
                language: (folder / file).read_text().replace(_EXAMPLE_BASE, base).strip()
                for language, file in _LANGUAGES.items()
            }
            answer = folder / "answer.json"
            found.append((operation["summary"], code, answer.read_text() if answer.exists() else ""))
    return found


def prose(text: str) -> Markup:
    """Text with `code` between backticks as HTML."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - of our own files
