"""The web: HTTP in, answers out. Importing it does nothing; `create_app` wires everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.classifier import Classifier
    from app.core.http import FlaskApp
    from app.core.settings import Settings


def create_app(settings: Settings | None = None, classifier: Classifier | None = None) -> FlaskApp:
    """The app, set up from the environment and asking a real Triton unless given others."""
    from app.api.services import Services, add_navigation
    from app.core.http import FlaskApp
    from app.core.settings import Settings
    from app.features import FEATURES, OWN_PAGES
    from app.middleware import MIDDLEWARE

    settings = settings or Settings.from_env(os.environ)
    services = Services.of(settings, OWN_PAGES, classifier)
    app = FlaskApp(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    for init_app in MIDDLEWARE:
        init_app(app, settings)
    links = [link for add in FEATURES for link in add(app, services)]
    app.register_blueprint(services.api)
    add_navigation(app, links)
    return app
