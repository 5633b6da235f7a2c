"""Metrics for Prometheus, summed over all workers of gunicorn."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from app.web.http import ADMITTED, route, since_start_ms
from app.web.settings import Settings
from gourmet.contracts import Generation, System
from gourmet.systems.registry import load_all

DIRECTORY_ENV: Final = "PROMETHEUS_MULTIPROC_DIR"
# The first labels of a model have their own series, about a dozen lines each. All others share one series.
MAX_LABELS: Final = 100
OTHER: Final = "other"
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_Times: Final = partial(Histogram, buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10))
_Shares: Final = partial(Histogram, buckets=(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1))
_Bytes: Final = partial(Histogram, buckets=(1e4, 3e4, 1e5, 3e5, 1e6, 2e6, 5e6, 1e7))
_Live: Final = partial(Gauge, multiprocess_mode="livesum")
_Newest: Final = partial(Gauge, multiprocess_mode="livemostrecent")
_Latest: Final = partial(Gauge, multiprocess_mode="livemax")
# The kinds of files in which prometheus_client counts for several workers, one of each kind a worker.
FILES: Final = (
    "counter",
    "histogram",
    *(f"gauge_{gauge.keywords['multiprocess_mode']}" for gauge in (_Live, _Newest, _Latest)),
)
_Table = dict[str, tuple[Callable[..., Any], str, list[str]]]
# Metrics of the web and of each kind of system. The names begin with "web" or the system's prefix.
_OF_THE_WEB: Final[_Table] = {
    "requests_total": (Counter, "Requests answered, by route and status", ["route", "method", "status"]),
    "request_seconds": (_Times, "Time from the end of a request's headers to its answer", ["route"]),
    "model_requests_total": (
        Counter,
        "Requests to models, samples too: answered, refused by the model, or failed with that code",
        ["model", "outcome"],
    ),
    "photo_bytes": (_Bytes, "How large the photos were that came", []),
    "errors_total": (Counter, "Requests and photos refused or failed, by the code of the error", ["code"]),
    **{
        f"{kind.replace(' ', '_')}_in_flight": (
            _Live,
            f"Requests for {kind} at the moment: waiting for a place, with a place (work), being uploaded",
            ["stage"],
        )
        for kind in ADMITTED
    },
    "refusals_total": (
        Counter,
        "Requests rejected because of overload, by limit",
        ["at"],
    ),
    "ready": (
        _Newest,
        "Whether the system's model is loaded and answered its sample once since",
        ["system"],
    ),
    "serves_older_version": (
        _Newest,
        "Whether the system's model serves an older version, since the newest one does not load",
        ["system"],
    ),
    "started_seconds": (
        _Latest,
        "When the youngest worker of this web app began, in seconds of Unix time",
        [],
    ),
    "rate_limit_failures_total": (
        Counter,
        "Requests whose client was counted by this web app alone, as RATE_LIMIT_STORAGE did not answer",
        [],
    ),
}
_OF_PICTURES: Final[_Table] = {
    "phase_seconds": (_Times, "Where the time of a classified photo went", ["phase"]),
    "predictions_total": (Counter, "Photos classified, by model and label", ["model", "label"]),
    "confidence": (_Shares, "How sure the answers were, by label", ["label"]),
}
_OF_TEXTS: Final[_Table] = {
    "phase_seconds": (_Times, "Where the time of a generated text went", ["phase"]),
    "generations_total": (Counter, "Texts generated, by model", ["model"]),
    "tokens_total": (Counter, "Tokens of generated texts, where the model tells them", ["model"]),
    "first_piece_seconds": (
        _Times,
        "Time from asking Triton to the first piece of a streamed text",
        ["model"],
    ),
    "piece_seconds": (_Times, "Time between the pieces of a streamed text", ["model"]),
}


class Metrics:
    def __init__(self, systems: Iterable[System] = ()) -> None:
        self._registry = CollectorRegistry()  # one per app, so that a process may have several apps
        self.of_system = {
            system.name: self._make_metrics(
                re.sub(r"\W", "_", system.metrics_prefix),
                _OF_TEXTS if isinstance(system, Generation) else _OF_PICTURES,
            )
            for system in systems
        }
        web = self._make_metrics("web", _OF_THE_WEB)
        self.requests: Counter = web["requests_total"]
        self.request_seconds: Histogram = web["request_seconds"]
        self.model_requests: Counter = web["model_requests_total"]
        self.photo_bytes: Histogram = web["photo_bytes"]
        self.errors: Counter = web["errors_total"]
        self.in_flight: dict[str, Gauge] = {
            kind: web[f"{kind.replace(' ', '_')}_in_flight"] for kind in ADMITTED
        }
        self.refusals: Counter = web["refusals_total"]
        self.ready: Gauge = web["ready"]
        self.serves_older: Gauge = web["serves_older_version"]
        web["started_seconds"].set_to_current_time()
        self.rate_limit_failures: Counter = web["rate_limit_failures_total"]

    def _make_metrics(self, prefix: str, table: _Table) -> dict[str, Any]:
        return {
            name: kind(f"{prefix}_{name}", text, labels, registry=self._registry)
            for name, (kind, text, labels) in table.items()
        }

    def count_model(self, model: str, outcome: str) -> None:
        self.model_requests.labels(model, outcome).inc()

    def observe_phases(self, system: str, timings_ms: Mapping[str, float]) -> None:
        for phase, ms in timings_ms.items():
            self.of_system[system]["phase_seconds"].labels(phase).observe(ms / 1000)

    def observe_response(self, response: Response) -> Response:
        # Clients may send any word as a method, and must not choose the values of labels.
        method = request.method if request.method in _METHODS else OTHER
        self.requests.labels(route(), method, response.status_code).inc()
        self.request_seconds.labels(route()).observe(since_start_ms() / 1000)
        return response

    def text(self) -> bytes:
        registry: CollectorRegistry = self._registry
        if os.environ.get(DIRECTORY_ENV):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def init_app(app: Flask, _: Settings) -> None:
    metrics = Metrics(load_all().values())
    app.extensions["metrics"] = metrics
    app.after_request(metrics.observe_response)
