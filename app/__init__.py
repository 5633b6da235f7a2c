"""The web: HTTP in, answers out. Importing it does nothing; `create_app` wires everything."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.classifier import Classifier
    from app.core.settings import Settings


def create_app(settings: Settings | None = None, classifier: Classifier | None = None) -> Flask:
    """The app, set up from the environment and asking a real Triton unless told otherwise."""
    from flask import Blueprint

    from app.admission import queue, rate_limit, uploads
    from app.api.photo_calls import THREADS
    from app.classifier import Classifier
    from app.core import (
        auth,
        compression,
        errors,
        health,
        hosts_and_cors,
        http,
        logs,
        messages,
        metrics,
        tracing,
    )
    from app.core.settings import Settings
    from app.features import FEATURES, OWN_PAGES
    from app.features.feature import Services, add_navigation
    from app.generator import Generator
    from app.triton.client import Triton
    from gourmet.contracts import Classification, Generation
    from gourmet.systems.registry import load_all

    settings = settings or Settings.from_env(os.environ)
    every = load_all()
    systems = {name: every[name] for name in (*OWN_PAGES, *every)}
    triton = Triton(settings.triton_url, settings.connect_timeout_s, shares_memory=True)
    pictures = {name: each for name, each in systems.items() if isinstance(each, Classification)}
    classifier = classifier or Classifier(triton, pictures, settings.models, settings.apart_at_once)
    texts = {name: each for name, each in systems.items() if isinstance(each, Generation)}
    generator = Generator(triton, texts, settings.models)

    app = http.App(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    uploads.init_app(app, settings)
    metrics.init_app(app, systems.values())
    logs.init_app(app, settings)
    http.init_app(app)
    tracing.init_app(app)
    hosts_and_cors.init_app(app, settings)
    queue.init_app(app, settings)
    auth.init_app(app, settings)
    rate_limit.init_app(app, settings)
    compression.init_app(app)
    messages.init_app(app)
    errors.init_app(app)

    services = Services(
        settings=settings,
        systems=systems,
        own_pages=OWN_PAGES,
        classifier=classifier,
        readiness=health.readiness_of(systems, settings, classifier, generator),
        photos=ThreadPoolExecutor(THREADS, thread_name_prefix="photo"),
        api=Blueprint("api", __name__, url_prefix="/api/v1"),
        triton=triton,
        generator=generator,
    )
    links = [link for add in FEATURES for link in add(app, services)]
    app.register_blueprint(services.api)
    app.register_blueprint(health.blueprint(services.readiness[services.first_system]))
    add_navigation(app, links)
    if not settings.trusted_hosts and "tracing" not in app.extensions:  # which concern /healthz too
        health.answer_before_flask(app)
    return app
