"""What Triton counts of its models, out of its own JSON, and the difference of two looks at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class ModelStatistics:
    """Sums over what a model did since Triton loaded it, or between two looks; a version's, or of all."""

    name: str = ""
    version: str = ""
    requests: int = 0
    failures: int = 0
    rows: int = 0
    executions: int = 0
    cache_hits: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    # By the number of rows that went through the network at once.
    executions_by_batch: Mapping[int, int] = field(default_factory=dict)
    infer_ns_by_batch: Mapping[int, int] = field(default_factory=dict)

    def since(self, before: ModelStatistics) -> ModelStatistics:
        """What was counted after `before`."""
        return self._with(before, -1)

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        return self._with(other, 1)

    def _with(self, other: ModelStatistics, sign: int) -> ModelStatistics:
        together: dict[str, Any] = {"name": self.name or other.name}
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, int):
                together[each.name] = mine + sign * theirs
            elif isinstance(mine, Mapping):
                sums = {key: mine.get(key, 0) + sign * theirs.get(key, 0) for key in sorted({*mine, *theirs})}
                together[each.name] = {key: value for key, value in sums.items() if value}
        return ModelStatistics(**together)

    @property
    def mean_batch(self) -> float:
        """Rows that went through the network at once, on average over the executions."""
        times = sum(self.executions_by_batch.values())
        return sum(rows * count for rows, count in self.executions_by_batch.items()) / times if times else 0.0


def by_version(answer: Mapping[str, Any]) -> list[ModelStatistics]:
    """Every version of every model in an answer of /v2/models/…/stats."""
    return [_parse(entry) for entry in answer["model_stats"]]


def of_all_versions(answer: Mapping[str, Any]) -> ModelStatistics:
    """The sums over all versions of the one model that was asked for."""
    return sum(by_version(answer), ModelStatistics())


def _parse(entry: Mapping[str, Any]) -> ModelStatistics:
    of_requests = entry.get("inference_stats", {})

    def told(phase: str, what: str) -> int:
        return int(of_requests.get(phase, {}).get(what, 0))

    executions, infer_ns = Counter[int](), Counter[int]()
    for batch in entry.get("batch_stats", []):
        executions[int(batch["batch_size"])] += int(batch["compute_infer"].get("count", 0))
        infer_ns[int(batch["batch_size"])] += int(batch["compute_infer"].get("ns", 0))
    return ModelStatistics(
        name=str(entry.get("name", "")),
        version=str(entry.get("version", "")),
        requests=told("success", "count"),
        failures=told("fail", "count"),
        rows=int(entry.get("inference_count", 0)),
        executions=int(entry.get("execution_count", 0)),
        cache_hits=told("cache_hit", "count"),
        queue_ns=told("queue", "ns"),
        input_ns=told("compute_input", "ns"),
        infer_ns=told("compute_infer", "ns"),
        output_ns=told("compute_output", "ns"),
        executions_by_batch=dict(executions),
        infer_ns_by_batch=dict(infer_ns),
    )
