"""The web: HTTP in, answers out. Importing it does nothing; `create_app` wires everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.models import Classifier
    from app.web.settings import Settings


def create_app(settings: Settings | None = None, classifier: Classifier | None = None) -> Flask:
    """Create the app; without arguments, from the environment and with a real Triton."""
    from flask import Flask

    from app.api import uploads
    from app.pages import FEATURES, OWN_PAGES
    from app.services import Services, add_navigation
    from app.web import (
        admission,
        auth,
        errors,
        http,
        logs,
        messages,
        metrics,
        other_sites,
        rate_limit,
        tracing,
    )
    from app.web.settings import Settings

    settings = settings or Settings.from_env(os.environ)
    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    # Every request passes these in this order before its view, and in reverse after it.
    middleware = (
        *(metrics, logs, http, tracing, other_sites),
        *(uploads, auth, rate_limit, admission, messages, errors),
    )
    for module in middleware:
        module.init_app(app, settings)
    services = Services(settings, OWN_PAGES, app.extensions["metrics"], classifier)
    links = [link for add in FEATURES for link in add(app, services)]
    app.register_blueprint(services.api)
    add_navigation(app, links)
    return app
