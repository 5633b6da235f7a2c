"""How busy the machine of a Triton is, as its own metrics tell."""

from __future__ import annotations

import re
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from gourmet.client.errors import TritonUnreachable

# All of a server's metrics with hundreds of models.
_MOST_BYTES: Final = 4 << 20
_NAME: Final = re.compile(r"nv_[cg]pu_(\w+)")


@dataclass(frozen=True)
class ProcessorUse:
    """Of the CPUs together, or of one GPU; None is what Triton does not tell."""

    busy: float | None  # the share, from 0 to 1
    memory_bytes: float | None
    memory_total_bytes: float | None


@dataclass(frozen=True)
class MachineUse:
    cpu: ProcessorUse
    gpus: tuple[ProcessorUse, ...]


def machine_use(metrics_url: str, timeout_s: float) -> MachineUse:
    """At the moment; raise TritonUnreachable."""
    try:
        with urllib.request.urlopen(metrics_url, timeout=timeout_s) as answer:
            return parsed(answer.read(_MOST_BYTES).decode(errors="replace"))
    except (OSError, ValueError) as exc:
        raise TritonUnreachable(f"no metrics at {metrics_url} ({exc})") from exc


def parsed(text: str) -> MachineUse:
    """Out of the text of Triton's metrics."""
    found = defaultdict[str, dict[str, float]](dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if name := _NAME.fullmatch(sample.name):
                found[sample.labels.get("gpu_uuid", "")][name[1]] = sample.value
    cpu = _use(found.pop("", {}))
    return MachineUse(cpu, tuple(_use(found[gpu]) for gpu in sorted(found)))


def _use(metrics: dict[str, float]) -> ProcessorUse:
    return ProcessorUse(*map(metrics.get, ("utilization", "memory_used_bytes", "memory_total_bytes")))
