"""What a feature of the app is built from and what it tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from flask import Blueprint, Flask, render_template, request, url_for

from app.classifier import Classifier
from app.core.errors import ServingError
from app.core.health import Readiness
from app.core.settings import Settings
from app.generator import Generator
from app.triton.client import Triton
from gourmet.contracts import System


@dataclass(frozen=True)
class Services:
    """What the app has for all its features."""

    settings: Settings
    systems: Mapping[str, System]  # all there are; the first is what the app is about
    own_pages: Sequence[str]  # the systems that have a feature of their own
    classifier: Classifier
    generator: Generator
    readiness: Mapping[str, Readiness]  # by system
    photos: ThreadPoolExecutor  # for all calls of several photos together
    api: Blueprint  # /api/v1: a feature adds its addresses to it
    triton: Triton

    @property
    def first_system(self) -> str:
        return next(iter(self.systems))

    def page(self, template: str, system: System, **context: Any) -> str:
        """A page that asks models of `system`."""
        return render_template(
            template,
            system=system,
            model=self.settings.models[system.name],
            max_upload_bytes=self.settings.max_upload_bytes,
            **context,
        )


@dataclass(frozen=True)
class NavigationEntry:
    """A link to a page; not shown where nobody would have an answer there."""

    endpoint: str
    text: str
    readiness: Readiness | None = None  # of whom is asked there
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> bool:
        return self.readiness is None or not isinstance(self.readiness.check(), ServingError)

    @property
    def url(self) -> str:
        return url_for(self.endpoint, **self.values)

    @property
    def current(self) -> bool:
        """Whether it is the page that is being made."""
        return request.endpoint == self.endpoint and self.values == (request.view_args or {})


def add_navigation(app: Flask, entries: Sequence[NavigationEntry]) -> None:
    """Have every page show `entries`, of which the first is the home page."""
    app.jinja_env.globals.update(
        navigation=lambda: [entry for entry in entries if entry.shown], home=lambda: entries[0].url
    )
