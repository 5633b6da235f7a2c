"""Triton's counts for its models, their differences, and the load of its machine."""

from __future__ import annotations

import operator
import re
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from gourmet.triton_client.errors import TritonUnreachable

# A server with hundreds of models has fewer metrics than this.
_MAX_METRICS_BYTES: Final = 4 << 20
_METRIC: Final = re.compile(r'^nv_[cg]pu_(\w+)(?:\{gpu_uuid="(.*?)"\})? (\S+)', re.MULTILINE)


@dataclass(frozen=True)
class ModelStatistics:
    """Sums for a model, or one of its versions, since Triton loaded it or between two readings."""

    name: str = ""
    version: str = ""
    requests: int = 0
    failures: int = 0
    rows: int = 0
    executions: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    # By the number of rows that went through the network at once.
    executions_by_batch: Counter[int] = field(default_factory=Counter)
    infer_ns_by_batch: Counter[int] = field(default_factory=Counter)

    def since(self, before: ModelStatistics) -> ModelStatistics:
        """Return what was counted after `before`."""
        return self._with(before, operator.sub)

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        return self._with(other, operator.add)

    def _with(self, other: ModelStatistics, sign: Callable[[Any, Any], Any]) -> ModelStatistics:
        numbers = [item.name for item in fields(self) if item.name not in ("name", "version")]
        sums = {name: sign(getattr(self, name), getattr(other, name)) for name in numbers}
        return ModelStatistics(self.name or other.name, **sums)


def by_version(answer: Mapping[str, Any]) -> list[ModelStatistics]:
    """Parse an answer of /v2/models/…/stats: every version of every model."""
    return [_parse(entry) for entry in answer["model_stats"]]


def _parse(entry: Mapping[str, Any]) -> ModelStatistics:
    of_requests = entry.get("inference_stats", {})

    def counted(phase: str, what: str) -> int:
        return int(of_requests.get(phase, {}).get(what, 0))

    by_batch = {int(batch["batch_size"]): batch["compute_infer"] for batch in entry.get("batch_stats", [])}
    return ModelStatistics(
        name=entry.get("name", ""),
        version=entry.get("version", ""),
        requests=counted("success", "count"),
        failures=counted("fail", "count"),
        rows=int(entry.get("inference_count", 0)),
        executions=int(entry.get("execution_count", 0)),
        queue_ns=counted("queue", "ns"),
        input_ns=counted("compute_input", "ns"),
        infer_ns=counted("compute_infer", "ns"),
        output_ns=counted("compute_output", "ns"),
        executions_by_batch=Counter({size: int(infer.get("count", 0)) for size, infer in by_batch.items()}),
        infer_ns_by_batch=Counter({size: int(infer.get("ns", 0)) for size, infer in by_batch.items()}),
    )


class ProcessorUse(NamedTuple):
    """Use of all CPUs together, or of one GPU; None where Triton does not report it."""

    busy: float | None  # the share, from 0 to 1
    memory_bytes: float | None
    memory_total_bytes: float | None


def machine_use(metrics_url: str, timeout_s: float) -> list[ProcessorUse]:
    """Return the present use of the CPUs and each GPU from Triton's metrics; raise TritonUnreachable."""
    processors = defaultdict[str, dict[str, float]](dict, {"": {}})
    try:
        with urllib.request.urlopen(metrics_url, timeout=timeout_s) as answer:
            text = answer.read(_MAX_METRICS_BYTES).decode(errors="replace")
        for name, gpu, value in _METRIC.findall(text):
            processors[gpu][name] = float(value)
    except (OSError, ValueError) as exc:
        raise TritonUnreachable(f"no metrics at {metrics_url} ({exc})") from exc
    names = ("utilization", "memory_used_bytes", "memory_total_bytes")
    return [ProcessorUse(*map(metrics.get, names)) for _, metrics in sorted(processors.items())]
