"""What is known of a system's network, for those who use its page: the model card of its folder."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Blueprint, Flask, abort, render_template, url_for

from app.api.services import NavigationEntry, Services
from gourmet.contracts import System
from gourmet.runtime.bounded_reading import read_text
from gourmet.systems.described import MODEL_CARD
from gourmet.systems.registry import folder_of

_MOST_BYTES = 1 << 20


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes = Blueprint("model_cards", __name__)
    systems = services.systems

    def address(system: System) -> str:
        """Empty where there is no card."""
        there = (folder_of(system.name) / MODEL_CARD).is_file()
        return url_for("model_cards.card", name=system.name) if there else ""

    @routes.get("/model-card/<name>")
    def card(name: str) -> str:
        system = systems.get(name) or abort(404)
        try:
            text = read_text(folder_of(name) / MODEL_CARD, _MOST_BYTES)
        except (OSError, ValueError):  # removed since, or not a text
            abort(404)
        return render_template("model_card.html", title=system.title, text=text)

    app.jinja_env.globals["model_card"] = address
    app.register_blueprint(routes)
    return ()
