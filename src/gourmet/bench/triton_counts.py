"""What Triton itself counted: its statistics, and the difference of two looks at them."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gourmet.bench.results import BatchSize, Split

# Triton books a request shortly after it answered it.
_BOOKED_WITHIN_S: Final = 3.0
_PHASES: Final = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class Counts:
    """Sums since the model was loaded, or between two looks."""

    rows: int = 0
    requests: int = 0
    failed: int = 0
    cache_hits: int = 0
    phase_ns: Counter[str] = field(default_factory=Counter)
    executions: Counter[int] = field(default_factory=Counter)  # by rows
    infer_ns: Counter[int] = field(default_factory=Counter)

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.rows - before.rows,
            self.requests - before.requests,
            self.failed - before.failed,
            self.cache_hits - before.cache_hits,
            self.phase_ns - before.phase_ns,
            self.executions - before.executions,
            self.infer_ns - before.infer_ns,
        )

    def split(self, mean_ms: float) -> Split:
        """Where a mean latency of `mean_ms` went; what Triton does not account for is the network."""
        each = {phase: self.phase_ns[phase] / max(1, self.requests) / 1e6 for phase in _PHASES}
        inside = sum(each.values())
        queue, given, infer, output = each.values()
        return Split(queue, given, infer, output, max(0.0, mean_ms - inside))

    def batches(self) -> tuple[BatchSize, ...]:
        """How many rows went through the network at once, how often and for how long."""
        return tuple(
            BatchSize(rows, count, self.infer_ns[rows] / count / 1e6)
            for rows, count in sorted(self.executions.items())
        )


def counts(statistics: Mapping[str, Any]) -> Counts:
    """The sums over all versions of a model."""
    total = Counts()
    rows = requests = failed = hits = 0
    for version in statistics["model_stats"]:
        rows += int(version.get("inference_count", 0))
        times = version.get("inference_stats", {})
        requests += int(times.get("success", {}).get("count", 0))
        failed += int(times.get("fail", {}).get("count", 0))
        hits += int(times.get("cache_hit", {}).get("count", 0))
        for phase in _PHASES:
            total.phase_ns[phase] += int(times.get(phase, {}).get("ns", 0))
        for batch in version.get("batch_stats", []):
            size = int(batch["batch_size"])
            total.executions[size] += int(batch["compute_infer"]["count"])
            total.infer_ns[size] += int(batch["compute_infer"]["ns"])
    return Counts(rows, requests, failed, hits, total.phase_ns, total.executions, total.infer_ns)


def look(url: str, model: str) -> Counts:
    """The counts of a model now."""
    with urllib.request.urlopen(f"http://{url}/v2/models/{model}/stats", timeout=10) as answer:
        return counts(json.load(answer))


def booked(url: str, model: str, before: Counts, done: Callable[[Counts], bool]) -> Counts:
    """The counts since `before` when they are `done`, or after a while as they are."""
    deadline = time.monotonic() + _BOOKED_WITHIN_S
    while True:
        counted = look(url, model).since(before)
        if done(counted) or time.monotonic() > deadline:
            return counted
        time.sleep(0.05)
