"""What Triton itself counted while it was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gourmet.serving.asking import triton


@dataclass(frozen=True)
class Counted:
    """Triton's counters of one model, over all its versions, since it was loaded."""

    rows: int
    executions: Mapping[int, int]  # rows at once -> how often
    cache_hits: int

    def since(self, before: Counted) -> Counted:
        """What was counted after `before`."""
        grown = {size: number - before.executions.get(size, 0) for size, number in self.executions.items()}
        return Counted(
            self.rows - before.rows,
            {size: number for size, number in sorted(grown.items()) if number},
            self.cache_hits - before.cache_hits,
        )

    @property
    def mean_batch(self) -> float:
        """Rows that went through the network at once, on average over the executions."""
        times = sum(self.executions.values())
        return sum(size * number for size, number in self.executions.items()) / times if times else 0.0


def counted(url: str, model: str) -> Counted:
    """Triton's counters now."""
    with triton(url) as client:
        versions: list[dict[str, Any]] = client.get_inference_statistics(model)["model_stats"]
    executions: Counter[int] = Counter()
    for version in versions:
        for batch in version.get("batch_stats", []):
            executions[int(batch["batch_size"])] += int(batch["compute_infer"]["count"])
    return Counted(
        rows=sum(int(version.get("inference_count", 0)) for version in versions),
        executions=executions,
        cache_hits=sum(int(version["inference_stats"]["cache_hit"]["count"]) for version in versions),
    )
