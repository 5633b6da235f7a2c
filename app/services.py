"""Services of the app for its features: Triton, readiness, and the navigation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from flask import Blueprint, Flask, render_template, request, url_for

from app.api.schemas import Health, HealthModel
from app.api.texts import Generator
from app.models import Classifier, request_to_model
from app.web import tracing
from app.web.errors import ModelNotReady, ServingError, as_serving_error
from app.web.messages import TEXTS, message_of, t
from app.web.metrics import Metrics
from app.web.settings import Settings
from gourmet.contracts import INSTEAD_OF, Generation, System
from gourmet.pictures.classifier import PictureClassifier
from gourmet.systems.registry import load_all
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.triton import Triton

_log: Final = logging.getLogger(__name__)
_READY_AGE_S: Final = 1.0
_DEADLINE_S: Final = 5.0
# Longer than a model may take for its sample.
_STALE_S: Final = _DEADLINE_S + 2.0
_UNUSABLE: Final = "sample_unusable"
_AWAY: Final = "triton_unavailable"
# `/readyz` waits this long for systems that do not affect its status.
_OTHERS_S: Final = 1.0
# How long pages rely on a known problem without a new check.
_PROBLEM_AGE_S: Final = 60.0
# A page that lists models is shown without them rather than late.
LINK_DEADLINE_S: Final = 1.0
# How long a Triton that was never seen counts as starting; a large model on a slow disk takes minutes.
_STARTING_S: Final = 180.0
State = HealthModel | ServingError


class Readiness:
    """Cache whether `model` answers its sample; one background thread asks it, at most once a second."""

    def __init__(self, ask: Callable[[object], HealthModel], model: str) -> None:
        """`ask` gets the last known state, and raises an error unless the model can answer."""
        self._ask = ask
        self._model = model
        self._lock = threading.Lock()
        self._check = threading.Thread()
        self._known: State | None = None
        self._at = self._began = float("-inf")
        self._starting_until = time.monotonic() + _STARTING_S

    @property
    def known_problem(self) -> str:
        """The message of the last check if it failed recently, else an empty string; asks no model."""
        recent = isinstance(self._known, ServingError) and self._age_s() <= _PROBLEM_AGE_S
        return str(self._known) if recent else ""

    def last_known(self, by: float = 0.0) -> State | None:
        """Return the last known state; start a check if one is due, and wait for it until `by` at most."""
        self._start_check_if_due()
        self._check.join(max(0.0, by - time.monotonic()))
        return self._known

    def _start_check_if_due(self) -> bool:
        """Return True if a check was started."""
        with self._lock:
            if self._check.is_alive() or self._age_s() < _READY_AGE_S:
                return False
            # A daemon, since a sample that hangs must not keep the process from ending.
            check = threading.Thread(target=self._refresh, name="readiness", daemon=True)
            self._began = time.monotonic()
            check.start()
            self._check = check  # others join it without the lock, and can join a started one only
            return True

    def current_state(self) -> State:
        """Return the current state, for callers that ask for nothing else, such as a probe.

        An orchestrator that asks once a minute must not get a state that is a minute old, so a caller that
        starts a check waits for it. Others wait only for a first state, or if it is older than a check can
        take. A sample that hangs has no deadline: nobody waits for it longer than that.
        """
        if self._start_check_if_due() or self._age_s() > _STALE_S:
            self._check.join(max(0.0, self._began + _STALE_S - time.monotonic()))
        if self._known is None or self._age_s() > _STALE_S:
            message = f"{self._model!r} did not answer its sample within {_STALE_S:g} s"
            return ServingError("triton_too_slow", message)
        return self._known

    def health(self) -> Health:
        """Describe the current state for people and pages."""
        result = self.current_state()
        if not isinstance(result, ServingError):
            message = f"{result.name} answers"
            if result.instead_of:
                message += f" with version {result.version}: version {result.instead_of} could not be loaded"
            return Health(alive=True, ready=True, state="ready", message=message, model=result)
        state: Literal["starting", "loading", "not_ready", "away"] = "away"
        if isinstance(result, ModelNotReady):
            state = "loading" if result.loading else "not_ready"
        elif result.code == _UNUSABLE:
            state = "not_ready"
        elif result.code == _AWAY and time.monotonic() < self._starting_until:
            state = "starting"
        model, message = HealthModel(name=self._model), message_of(result.code, str(result))
        return Health(alive=True, ready=False, state=state, code=result.code, message=message, model=model)

    def _age_s(self) -> float:
        return time.monotonic() - self._at

    def _refresh(self) -> None:
        state: State
        try:
            state = self._ask(self._known)
        except Exception as exc:
            state = as_serving_error(exc)
            if state.status < 500 or state.code in ("internal", "too_slow"):
                what = f"the sample for {self._model!r} cannot be used"
                if getattr(self._known, "code", "") != _UNUSABLE:
                    _log.error(what, exc_info=exc)
                state = ServingError(_UNUSABLE, f"{what}: the log says why, correct the system's folder")
        if getattr(state, "code", "") != _AWAY:
            # Triton opens its port only when its models are loaded. Until then a starting Triton looks like
            # one that is away; after its first answer it counts as away.
            self._starting_until = 0.0
        self._known, self._at = state, time.monotonic()


class Services:
    """The services that all features share."""

    def __init__(
        self,
        settings: Settings,
        own_pages: Sequence[str],
        metrics: Metrics,
        classifier: Classifier | None = None,
    ) -> None:
        """Set up the services; `own_pages` are the systems with their own feature, the main one first."""
        every = load_all()
        systems = {name: every[name] for name in (*own_pages, *every)}
        texts = {name: system for name, system in systems.items() if isinstance(system, Generation)}
        self.settings = settings
        self.systems = systems
        self.own_pages = own_pages
        self.first_system = next(iter(systems))
        self.pictures = {
            name: system for name, system in systems.items() if isinstance(system, PictureClassifier)
        }
        connect = partial(
            Triton,
            settings.triton_url,
            connect_timeout_s=settings.connect_timeout_s,
            headers=tracing.traceparent,
            around=partial(request_to_model, metrics.count_model),
        )
        self.triton = connect()
        self.classifier = classifier or Classifier(
            self.triton,
            self.pictures,
            settings.models,
            settings.max_sandboxed,
            settings.served_models,
        )
        # Some clients that wait for a text disconnect early. Triton detects that over gRPC only.
        grpc = settings.triton_grpc_url
        grpc_address = grpc if "://" in grpc else f"grpc://{grpc}"
        for_texts = connect(grpc_address=grpc_address) if grpc else self.triton
        self.generator = Generator(
            for_texts, texts, settings.models, settings.max_sandboxed, settings.served_models
        )
        # /api/v1: a feature adds its addresses to it.
        self.api = Blueprint("api", "app.api", url_prefix="/api/v1")
        self.readiness = {
            name: Readiness(partial(self._state, name), settings.models[name]) for name in systems
        }

    def states(self) -> dict[str, State | None]:
        """Return each system's state: wait for the first, which decides, then ask the others together."""
        (first, decides), *others = self.readiness.items()
        states = {first: decides.current_state()}
        by = time.monotonic() + _OTHERS_S
        for _, readiness in others:
            readiness.last_known()
        return states | {name: readiness.last_known(by) for name, readiness in others}

    def last_known(self) -> dict[str, State]:
        """Return the known states by system without waiting, and start the checks that are due."""
        states = {name: readiness.last_known() for name, readiness in self.readiness.items()}
        return {name: state for name, state in states.items() if state is not None}

    def _state(self, system: str, known: object) -> HealthModel:
        """Return the loaded model; ask about its sample unless it is the `known` one.

        The sample is sent only once, because in a busy Triton it waits behind all other requests.
        """
        deadline = Deadline(min(_DEADLINE_S, self.settings.request_deadline_s))
        info = (self.classifier if system in self.pictures else self.generator).loaded(system, deadline)
        instead_of = info.parameters.get(INSTEAD_OF)
        loaded = HealthModel(name=info.name, version=info.version, instead_of=instead_of)
        if loaded != known:
            if system in self.pictures:
                self.classifier.classify(self.pictures[system].sample(), deadline, system=system)
            else:
                self.generator.ask_sample(system, deadline)
        return loaded

    def page(self, template: str, system: System, **context: Any) -> str:
        """Render a page that uses models of `system`."""
        return render_template(
            template,
            system=system,
            model=self.settings.models[system.name],
            max_upload_bytes=self.settings.max_upload_bytes,
            **context,
        )


@dataclass(frozen=True)
class NavigationEntry:
    """A link to a page; hidden while its model is known not to answer."""

    endpoint: str
    text: str  # the id of a text, or a system's title
    readiness: Readiness | None = None  # of the model that the page uses
    values: Mapping[str, Any] = field(default_factory=dict)
    is_demo: bool = False
    is_own: bool = False  # of a classifier that was made here; shown only while its model answers
    is_offered: Callable[[], bool] | None = None  # to this client

    @property
    def words(self) -> str:
        return t(self.text) if self.text in TEXTS else self.text

    @property
    def shown(self) -> bool:
        if self.is_offered and not self.is_offered():
            return False
        if self.readiness and self.is_own:
            # The first view of a page waits for the first check.
            return isinstance(self.readiness.last_known(time.monotonic() + _OTHERS_S), HealthModel)
        return self.readiness is None or not self.readiness.known_problem

    @property
    def url(self) -> str:
        return url_for(self.endpoint, **self.values)

    @property
    def current(self) -> bool:
        """Return True for the page that is being rendered."""
        return request.endpoint == self.endpoint and self.values == (request.view_args or {})


def add_navigation(app: Flask, entries: Sequence[NavigationEntry]) -> None:
    """Show `entries` on every page. The first is the home page; demos share a menu, and own classifiers."""
    app.jinja_env.globals.update(
        navigation=lambda is_demo: [
            entry for entry in entries if entry.is_demo == is_demo and not entry.is_own and entry.shown
        ],
        own_pages=lambda: [entry for entry in entries if entry.is_own and entry.shown],
        home=lambda: entries[0].url,
    )
