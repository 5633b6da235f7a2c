"""The web: HTTP in, answers out. Importing it does nothing; `create_app` wires everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.food import Classifier
    from app.settings import Settings


def create_app(settings: Settings | None = None, classifier: Classifier | None = None) -> Flask:
    """The app, set up from the environment and asking a real Triton unless told otherwise."""
    from flask import Flask

    from app import (
        access,
        delivery,
        errors,
        food_routes,
        health,
        inference,
        keys,
        metrics,
        pages,
        rates,
        texts,
        uploads,
        web,
    )
    from app.api import docs
    from app.api import routes as api_routes
    from app.api.several import Several
    from app.food import FoodClassifier
    from app.settings import Settings

    settings = settings or Settings.from_env(os.environ)
    if classifier is None:
        triton = inference.Triton(settings.triton_url, settings.connect_timeout_s)
        classifier = FoodClassifier(triton, settings.food_model)

    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    uploads.init_app(app, settings)
    metrics.init_app(app)
    web.init_app(app)
    access.init_app(app, settings)
    keys.init_app(app, settings)
    rates.init_app(app, settings)
    delivery.init_app(app)
    texts.init_app(app)
    errors.init_app(app)
    app.register_blueprint(food_routes.blueprint(classifier, settings))
    pages.init_app(app, classifier, settings)
    readiness = health.Readiness(classifier, settings)
    several = Several()
    app.register_blueprint(health.blueprint(readiness))
    app.register_blueprint(api_routes.blueprint(classifier, settings, readiness, several))

    def close() -> None:
        several.close()
        classifier.close()

    app.register_blueprint(docs.blueprint(settings))
    app.extensions["close"] = close
    return app
