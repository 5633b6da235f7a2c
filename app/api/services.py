"""Services of the app for its features: Triton, readiness, and the navigation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar

from flask import Blueprint, Flask, render_template, request, url_for

from app.api import openapi
from app.api.schemas import Health, HealthModel
from app.api.text_calls import Generator
from app.asking import AppTriton
from app.classifier import Classifier
from app.core.errors import ModelNotReady, Overloaded, ServingError, TritonTooSlow, TritonUnavailable
from app.core.metrics import Metrics
from app.core.settings import Settings
from gourmet.client.deadline import Deadline
from gourmet.contracts import INSTEAD_OF, Generation, System
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.errors import DecodersBusy
from gourmet.systems.registry import load_all

T = TypeVar("T")
# The request id of those that ask whether a model answers.
PROBE: Final = "readyz"
_log: Final = logging.getLogger(__name__)
_READY_AGE_S: Final = 1.0
_DEADLINE_S: Final = 5.0
# Longer than a model may take for its sample.
_STALE_S: Final = _DEADLINE_S + 2.0
_UNUSABLE: Final = "sample_unusable"
# How long what else is served may keep a probe waiting, which it does not decide.
_OTHERS_S: Final = 1.0
# How long pages go by a problem that nobody has looked at since.
_TOLD_S: Final = 60.0
# A page is shown without what it would list rather than late.
LINK_DEADLINE_S: Final = 1.0
# How long a Triton that was never seen counts as starting; a large model on a slow disk takes minutes.
_STARTING_S: Final = 180.0
# Threads of a process for all calls of several photos together, which leaves those who send one photo their
# share of Triton.
PHOTO_THREADS: Final = 4


class TtlCache(Generic[T]):
    """Cache the result of `ask`; one caller refreshes it once it is `age_s` old.

    While somebody asks, which may take seconds, the others get the answer before.
    """

    def __init__(self, ask: Callable[[], T], age_s: float) -> None:
        self._ask = ask
        self._age_s = age_s
        self._lock = threading.Lock()
        self._known: tuple[float, T] | None = None

    def get(self) -> T:
        known = self._known
        if not self._lock.acquire(blocking=known is None) and known:
            return known[1]
        try:
            if self._known is None or time.monotonic() - self._known[0] >= self._age_s:
                found = self._ask()
                self._known = time.monotonic(), found
            return self._known[1]
        finally:
            self._lock.release()


class Readiness:
    """Remember whether `model` answers its sample.

    It is asked at most once a second, however many want to know, and by a thread beside them.
    """

    def __init__(self, ask: Callable[[], HealthModel], model: str) -> None:
        self._ask_sample = ask
        self._model = model
        self._lock = threading.Lock()
        self._asking = threading.Thread()
        self._known: HealthModel | ServingError | None = None
        self._at = self._asked_at = float("-inf")
        self._starting_until = time.monotonic() + _STARTING_S

    @property
    def known_problem(self) -> str:
        """Why nobody would have an answer, empty where that is not known: for pages, which ask no model."""
        recent = isinstance(self._known, ServingError) and self._age_s() <= _TOLD_S
        return str(self._known) if recent else ""

    def last_known(self, by: float) -> HealthModel | ServingError | None:
        """The state for those whom it does not decide: while it is being asked they wait until `by`."""
        self._ask_beside()
        self._asking.join(max(0.0, by - time.monotonic()))
        return self._known

    def check(self) -> HealthModel | ServingError:
        """The state for those who ask for nothing else, such as a probe.

        An orchestrator that asks once a minute must not get a state that is a minute old, so a caller that
        has the model asked waits for the answer. The others wait only where what is known is older than the
        answer can take, so that a model that hangs does not hold their threads.
        """
        began = self._ask_beside()
        if began or self._age_s() > _STALE_S:
            self._asking.join(max(0.0, self._asked_at + _STALE_S - time.monotonic()))
        # A sample that hangs has no deadline: it is waited for once, and nobody waits after that.
        if self._known is None or self._age_s() > _STALE_S:
            return TritonTooSlow(f"{self._model!r} did not answer its sample within {_STALE_S:g} s")
        return self._known

    def health(self) -> Health:
        """The same for people and their pages."""
        found = self.check()
        if not isinstance(found, ServingError):
            message = f"{found.name} answers"
            if found.instead_of:
                message += f" with version {found.version}: version {found.instead_of} could not be loaded"
            return Health(alive=True, ready=True, state="ready", message=message, model=found)
        state: Literal["starting", "loading", "not_ready", "away"] = "away"
        if isinstance(found, ModelNotReady):
            state = "loading" if found.loading else "not_ready"
        elif found.code == _UNUSABLE:
            state = "not_ready"
        elif isinstance(found, TritonUnavailable) and time.monotonic() < self._starting_until:
            state = "starting"
        model = HealthModel(name=self._model)
        return Health(alive=True, ready=False, state=state, code=found.code, message=str(found), model=model)

    def _age_s(self) -> float:
        return time.monotonic() - self._at

    def _ask_beside(self) -> bool:
        """Have a thread ask the model where that is due; whether it was."""
        with self._lock:
            if self._asking.is_alive() or self._age_s() < _READY_AGE_S:
                return False
            # A daemon, since a sample that hangs must not keep the process from ending.
            self._asking = threading.Thread(target=self._ask, name="readiness", daemon=True)
            self._asked_at = time.monotonic()
            self._asking.start()
            return True

    def _ask(self) -> None:
        found: HealthModel | ServingError
        try:
            found = self._ask_sample()
        except DecodersBusy:
            found = Overloaded("decoders")
        except Exception as exc:
            found = exc if isinstance(exc, ServingError) and exc.status >= 500 else self._unusable(exc)
        if not isinstance(found, TritonUnavailable):
            # Triton opens its port only when its models are loaded: until then nobody can tell whether it
            # starts or is away, and from now on it is away.
            self._starting_until = 0.0
        self._known, self._at = found, time.monotonic()

    def _unusable(self, exc: Exception) -> ServingError:
        """The fault of the sample and of nothing else; the log has it once."""
        if not (isinstance(self._known, ServingError) and self._known.code == _UNUSABLE):
            _log.error("the sample for %r cannot be used", self._model, exc_info=exc)
        return ServingError(
            f"the sample for {self._model!r} cannot be used: the log says why, correct the system's folder",
            code=_UNUSABLE,
        )


class Services:
    """The services that all features share."""

    def __init__(
        self,
        settings: Settings,
        own_pages: Sequence[str],
        metrics: Metrics,
        classifier: Classifier | None = None,
    ) -> None:
        """`own_pages` are the systems with a feature of their own; the first is what the app is about."""
        every = load_all()
        systems = {name: every[name] for name in (*own_pages, *every)}
        texts = {name: each for name, each in systems.items() if isinstance(each, Generation)}
        self.settings = settings
        self.systems = systems
        self.own_pages = own_pages
        self.first_system = next(iter(systems))
        self.pictures = {name: each for name, each in systems.items() if isinstance(each, PictureClassifier)}
        where = settings.triton_url, settings.connect_timeout_s
        self.triton = AppTriton(*where, count=metrics.count_model)
        self.classifier = classifier or Classifier(
            self.triton,
            self.pictures,
            settings.models,
            settings.max_sandboxed,
            settings.served_models,
        )
        # Some clients that wait for a text leave early. Triton notices that over gRPC only.
        for_texts = (
            AppTriton(*where, settings.triton_grpc_url, metrics.count_model)
            if settings.triton_grpc_url
            else self.triton
        )
        self.generator = Generator(
            for_texts, texts, settings.models, settings.served_models, settings.max_sandboxed
        )
        # For all calls of several photos together.
        self.photos = ThreadPoolExecutor(PHOTO_THREADS, thread_name_prefix="photo")
        # /api/v1: a feature adds its addresses to it.
        self.api = Blueprint("api", "app.api", url_prefix="/api/v1")
        # The API's document, held to the app's routes once all features are added.
        self.document = openapi.read(list(systems), settings.max_photos)
        self._answered: dict[str, HealthModel] = {}  # by system, the model that answered its sample
        self.readiness = {
            name: Readiness(partial(self._state, name), settings.models[name]) for name in systems
        }

    def states(self) -> dict[str, HealthModel | ServingError | None]:
        """Return each system's state: wait for the first, which decides, then ask the others together."""
        (first, decides), *others = self.readiness.items()
        found = {first: decides.check()}
        by = time.monotonic() + _OTHERS_S
        for _, each in others:
            each.last_known(0.0)
        return found | {name: each.last_known(by) for name, each in others}

    def last_known(self) -> dict[str, HealthModel | ServingError]:
        """The state of each system whose model was asked; nobody waits, each is asked again."""
        found = {name: each.last_known(0.0) for name, each in self.readiness.items()}
        return {name: each for name, each in found.items() if each is not None}

    def _state(self, system: str) -> HealthModel:
        """Raise ServingError unless its model is loaded and has answered its sample once since.

        The sample is not asked each time: in a busy Triton it would wait behind all other requests.
        """
        deadline = Deadline(min(_DEADLINE_S, self.settings.request_deadline_s))
        answered = self._answered.pop(system, None)
        info = (self.classifier if system in self.pictures else self.generator).loaded(system, deadline)
        instead_of = info.parameters.get(INSTEAD_OF)
        loaded = HealthModel(name=info.name, version=info.version, instead_of=instead_of)
        if loaded != answered:
            if system in self.pictures:
                self.classifier.classify(self.pictures[system].sample(), deadline, PROBE, system=system)
            else:
                self.generator.ask_sample(system, deadline)
        self._answered[system] = loaded
        return loaded

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
    """A link to a page; not shown where it is known that nobody would have an answer there."""

    endpoint: str
    text: str
    readiness: Readiness | None = None  # of whom is asked there
    values: Mapping[str, Any] = field(default_factory=dict)
    is_demo: bool = False

    @property
    def shown(self) -> bool:
        return self.readiness is None or not self.readiness.known_problem

    @property
    def url(self) -> str:
        return url_for(self.endpoint, **self.values)

    @property
    def current(self) -> bool:
        """Return True for the page that is being made."""
        return request.endpoint == self.endpoint and self.values == (request.view_args or {})


def add_navigation(app: Flask, entries: Sequence[NavigationEntry]) -> None:
    """Have every page show `entries`, of which the first is the home page; the demos share one menu."""
    app.jinja_env.globals.update(
        navigation=lambda is_demo: [entry for entry in entries if entry.is_demo == is_demo and entry.shown],
        home=lambda: entries[0].url,
    )
