"""The web: HTTP in, answers out. Importing it does nothing; `create_app` wires everything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.classifier import Classifier
    from app.settings import Settings


def create_app(
    settings: Settings | None = None,
    classifier: Classifier | None = None,
    digits: Classifier | None = None,
) -> Flask:
    """The app, set up from the environment and asking a real Triton unless told otherwise.

    Where only the food `classifier` is given, the app has no digits, and no lab without a Triton to look at.
    """
    from flask import Flask

    from app import (
        access,
        delivery,
        digits_page,
        errors,
        food_routes,
        health,
        inference,
        keys,
        limits,
        logs,
        metrics,
        pages,
        rates,
        texts,
        tracing,
        uploads,
        web,
    )
    from app.api import docs, explain
    from app.api import routes as api_routes
    from app.api.several import Several
    from app.classifier import TritonClassifier
    from app.lab import routes as lab
    from app.settings import Settings
    from gourmet.systems.digits import contract as digits_contract
    from gourmet.systems.food11 import contract as food_contract

    settings = settings or Settings.from_env(os.environ)
    triton = None
    if classifier is None:
        triton = inference.Triton(settings.triton_url, settings.connect_timeout_s, shares_memory=True)
        classifier = TritonClassifier(triton, settings.food_model, food_contract)
        digits = digits or TritonClassifier(triton, settings.digits_model, digits_contract)

    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    uploads.init_app(app, settings)
    metrics.init_app(app)
    logs.init_app(app, settings)
    web.init_app(app)
    tracing.init_app(app)
    access.init_app(app, settings)
    limits.init_app(app, settings)
    keys.init_app(app, settings)
    rates.init_app(app, settings)
    delivery.init_app(app)
    texts.init_app(app)
    errors.init_app(app)
    app.register_blueprint(food_routes.blueprint(classifier, settings))
    pages.init_app(app, classifier, settings)
    classifiers = {food_contract.NAME: classifier}
    wait_s = min(health.DEADLINE_S, settings.request_deadline_s)
    seen = health.Sighting.shared()
    readiness = {food_contract.NAME: health.Readiness(classifier, settings.food_model, wait_s, seen)}
    if digits is not None:
        classifiers[digits_contract.NAME] = digits
        ready = health.Readiness(digits, settings.digits_model, pages.LIST_DEADLINE_S, seen)
        readiness[digits_contract.NAME] = ready
        digits_page.init_app(app, digits, ready, settings)
    several = Several()
    app.register_blueprint(health.blueprint(readiness[food_contract.NAME]))
    api = api_routes.blueprint(classifiers, settings, readiness, several)
    explain.add_to(api, classifier, settings)
    app.register_blueprint(api)

    def close() -> None:
        several.close()
        for each in classifiers.values():
            each.close()
        tracing.close(app)

    app.register_blueprint(docs.blueprint(settings))
    if triton is not None:
        lab.init_app(app, triton.model_statistics, settings)
    app.extensions["close"] = close
    return app
