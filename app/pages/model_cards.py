"""Pages that show the model card of a system's network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from flask import Blueprint, Flask, abort, render_template, url_for
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from app.services import NavigationEntry, Services
from gourmet.contracts import System
from gourmet.served.reading import read_text
from gourmet.systems.described import MODEL_CARD
from gourmet.systems.registry import folder_of

# HTML in a card is shown as text. The YAML front matter is for model hubs.
_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes = Blueprint("model_cards", __name__)
    systems = services.systems

    def address(system: System) -> str:
        """Return the address of the system's card, or an empty string without a card."""
        has_card = (folder_of(system.name) / MODEL_CARD).is_file()
        return url_for("model_cards.card", name=system.name) if has_card else ""

    @routes.get("/model-card/<name>")
    def card(name: str) -> str:
        system = systems.get(name) or abort(404)
        try:
            text = read_text(folder_of(name) / MODEL_CARD)
        except (OSError, ValueError):  # removed since, or not a text
            abort(404)
        return render_template(
            "model_card.html", title=system.title, text=as_html(_FRONT_MATTER.sub("", text))
        )

    app.jinja_env.globals["model_card"] = address
    app.register_blueprint(routes)
    return ()


def as_html(text: str) -> Markup:
    """Render a card without the styles that the content policy forbids, and without local links."""
    tokens = _MARKDOWN.parse(text)
    for token in tokens:
        token.attrs.pop("style", None)
        token.children = token.children and _without_local_links(token.children)
    for cell, content, end in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if cell.type == "th_open" and not content.content:  # an empty heading
            cell.tag = end.tag = "td"
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    # Phones scroll a wide table; keyboards can scroll it if it takes the focus.
    html = html.replace("<table>", '<div class="wide-table" tabindex="0"><table>').replace(
        "</table>", "</table></div>"
    )
    return Markup(html)  # noqa: S704 - made of text above


def _without_local_links(tokens: Sequence[Token]) -> list[Token]:
    kept, is_local = list[Token](), False
    for token in tokens:
        if token.type == "link_open":
            is_local = not str(token.attrGet("href")).startswith(("https://", "http://"))
        if not (is_local and token.type in ("link_open", "link_close")):
            kept.append(token)
    return kept
