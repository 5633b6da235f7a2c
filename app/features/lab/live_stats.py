"""What Triton counted, for a page that asks again and again: sums, of which it makes rates itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from app.core.errors import ServingError
from app.core.ttl_cache import TtlCache
from app.triton.client import Deadline
from gourmet.runtime.statistics import ModelStatistics

DEADLINE_S: Final = 2.0
# However many look, each process asks Triton twice a second at most.
_AGE_S: Final = 0.5
_NS_PER_MS: Final = 1e6

# What the page's table tells of a model, by the ids of the headings.
COLUMNS: Final = ("requests", "failures", "rows", "executions", "batch", "queue_ms", "compute_ms")

Ask = Callable[[Deadline], list[ModelStatistics]]


@dataclass(frozen=True)
class Look:
    """One look at all models; `at` is the time of day in seconds, which other processes tell too."""

    at: float
    models: tuple[ModelStatistics, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"at": round(self.at, 3), "models": [_model(each) for each in self.models]}


class Figures:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._remembered = TtlCache(self._look, _AGE_S)

    def look(self) -> Look:
        """What was so at most half a second ago; raise ServingError where Triton did not tell."""
        found = self._remembered.get()
        if isinstance(found, ServingError):
            raise found
        return found

    def _look(self) -> Look | ServingError:
        try:
            found = self._ask(Deadline(DEADLINE_S))
        except ServingError as error:
            return error
        return Look(time.time(), tuple(sorted(found, key=lambda each: (each.name, each.version))))


def totals(counted: ModelStatistics) -> list[str]:
    """The cells of the table."""
    told = _model(counted)
    told["batch"] = _mean(counted.rows, counted.executions)
    for phase in ("queue_ms", "compute_ms"):
        told[phase] = _mean(told[phase], counted.requests)
    return [str(told[column]) for column in COLUMNS]


def figure(value: float) -> str:
    """With three digits or all that are before the point, as the page's script writes it too."""
    return f"{value:.{0 if value >= 100 or value == 0 else 1 if value >= 10 else 2}f}"


def _mean(total: float, count: int) -> str:
    return figure(total / count) if count else "–"


def _model(counted: ModelStatistics) -> dict[str, Any]:
    """Milliseconds are sums over the requests, as the counts are sums since the model was loaded."""
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
