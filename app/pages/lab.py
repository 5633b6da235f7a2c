"""The lab page: live statistics of Triton.

Triton counts sums. The page polls them and computes the rates.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from flask import Blueprint, Flask, Response, render_template
from flask.typing import ResponseReturnValue

from app.services import NavigationEntry, Services
from app.web.errors import ServingError, as_serving_error
from app.web.http import route_options
from app.web.messages import t
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import TritonError
from gourmet.triton_client.model_config import summary
from gourmet.triton_client.statistics import ModelStatistics, ProcessorUse, machine_use

T = TypeVar("T")
_DEADLINE_S: Final = 2.0
# Each process asks Triton at most twice a second, however many visitors the page has.
_AGE_S: Final = 0.5
# Configs rarely change, and each needs its own request to Triton.
_CONFIGS_AGE_S: Final = 5.0
_METRICS_WITHIN_S: Final = 1.0
_NS_PER_MS: Final = 1e6
_UNSTORED: Final = {"Cache-Control": "no-store"}


class TtlCache(Generic[T]):
    """Cache the result of `ask`; one caller refreshes it once it is `age_s` old.

    While one caller refreshes it, which may take seconds, the others get the previous result.
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
                result = self._ask()
                self._known = time.monotonic(), result
            return self._known[1]
        finally:
            self._lock.release()


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    """Add the lab page, unless the settings turn it off."""
    settings = services.settings
    if settings.lab_page == "off":
        return ()
    app.jinja_env.filters["figure"] = figure
    routes = Blueprint("lab", __name__)

    def read_statistics() -> dict[str, Any] | ServingError:
        """Return the statistics of all models; `at` is Unix time, the same clock in all processes."""
        try:
            versions = services.triton.statistics("", Deadline(_DEADLINE_S))
        except TritonError as error:
            return as_serving_error(error)
        names[:] = sorted({version.name for version in versions})
        ordered = sorted(versions, key=lambda version: (version.name, version.version))
        models = [_model(version) for version in ordered]
        return {
            "at": round(time.time(), 3),
            "models": models,
            "configs": configs.get(),
            "machine": _machine(settings.triton_metrics_url),
        }

    def read_configs() -> dict[str, str]:
        """Return the configs by model, without models that are unloaded meanwhile or answer too late."""
        configs_by_model: dict[str, str] = {}
        deadline = Deadline(_DEADLINE_S)
        for name in names:
            with contextlib.suppress(TritonError):
                configs_by_model[name] = summary(services.triton.config(name, deadline))
        return configs_by_model

    names: list[str] = []  # of the models in the last statistics
    configs = TtlCache(read_configs, _CONFIGS_AGE_S)

    figures = TtlCache(read_statistics, _AGE_S)

    @routes.get("/lab")
    def page() -> str:
        model = settings.models[services.first_system]
        return render_template("lab.html", looked=figures.get(), model=model)

    @routes.get("/lab/figures")
    @route_options(probe=True)
    def now() -> ResponseReturnValue:
        statistics = figures.get()
        if isinstance(statistics, ServingError):
            raise statistics
        return statistics, _UNSTORED

    @routes.get("/lab/sample")
    def load_sample() -> Response:
        """Return the request that the page's short measurement sends."""
        sample = services.pictures[services.first_system].sample()
        return Response(sample, content_type="application/octet-stream")

    app.register_blueprint(routes)
    return [NavigationEntry("lab.page", "nav.lab")]


def figure(value: float) -> str:
    """Round to three digits, or to all before the point, as the page's script does."""
    digits = 1 if value >= 10 else 2
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.{digits}f}"


def _machine(metrics_url: str) -> list[str]:
    """Describe the load of Triton's machine in words; nothing if it is not known."""
    if not metrics_url:
        return []
    try:
        cpu, *gpus = machine_use(metrics_url, _METRICS_WITHIN_S)
    except TritonError:
        return []
    used = [(t("lab.cpu"), cpu), *((t("lab.gpu", number=number), gpu) for number, gpu in enumerate(gpus))]
    return [words for name, processor in used if (words := _processor(name, processor))]


def _processor(name: str, used: ProcessorUse) -> str:
    parts = []
    if used.busy is not None:
        parts.append(t("lab.busy", share=f"{used.busy:.0%}"))
    if used.memory_bytes is not None and used.memory_total_bytes:
        gb = (size / 1e9 for size in (used.memory_bytes, used.memory_total_bytes))
        parts.append(t("lab.memory", used=figure(next(gb)), total=figure(next(gb))))
    return f"{name}: {', '.join(parts)}" if parts else ""


def _model(counted: ModelStatistics) -> dict[str, Any]:
    """Return a model's sums since it was loaded: counts, and milliseconds of all requests."""
    batches = sorted(counted.executions_by_batch.items())
    return {
        "name": counted.name,
        "version": counted.version,
        "requests": counted.requests,
        "failures": counted.failures,
        "rows": counted.rows,
        "executions": counted.executions,
        "queue_ms": counted.queue_ns / _NS_PER_MS,
        "compute_ms": (counted.input_ns + counted.infer_ns + counted.output_ns) / _NS_PER_MS,
        "batches": [{"rows": rows, "executions": executions} for rows, executions in batches],
    }
