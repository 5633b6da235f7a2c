"""A model's config in a sentence, for terminals, reports and the lab's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gourmet.runtime.instances import (
    ENGINE_PARAMETER,
    FP32,
    ONNX_RUNTIME,
    PRECISION_PARAMETER,
    THREADS_PARAMETER,
    parameter,
)

Config = Mapping[str, Any]


def summary(config: Config) -> str:
    """What matters of a config, in one line."""
    placed = ", ".join(map(_placed, config.get("instance_group") or [])) or "instances left to Triton"
    threads = parameter(config, THREADS_PARAMETER)
    if threads and threads != "0":
        placed += f", {_counted(int(threads), 'thread')} each"
    if (engine := parameter(config, ENGINE_PARAMETER)) not in ("", ONNX_RUNTIME):
        placed += f", run by {engine}"
    if (precision := parameter(config, PRECISION_PARAMETER)) not in ("", FP32):
        placed += f", in {precision}"
    parts = [placed, *_batches(config)]
    if config.get("response_cache", {}).get("enable"):
        parts.append("answers cached")
    return "; ".join(parts)


def merges(batching: Config) -> bool:
    """Whether requests that wait share a batch; who prefers single rows wants the queue's policy alone."""
    return bool(batching.get("preferred_batch_size") != [1])


def _placed(group: Config) -> str:
    count, gpus = int(group.get("count", 1)), ", ".join(map(str, group.get("gpus", [])))
    kind = str(group.get("kind", "KIND_AUTO")).removeprefix("KIND_")
    where = {"CPU": "on the CPU", "GPU": f"on GPU {gpus}" if gpus else "on each GPU"}.get(
        kind, f"of kind {kind}"
    )
    return f"{_counted(count, 'instance')} {where}"


def _batches(config: Config) -> list[str]:
    largest = config.get("max_batch_size", 0)
    if not largest:
        return ["no batches"]
    parts, batching = [f"batches of up to {_counted(largest, 'row')}"], config.get("dynamic_batching")
    if batching is None or not merges(batching):
        return [*parts, "no dynamic batching"]
    delay_us = int(batching.get("max_queue_delay_microseconds", 0))
    said = (
        f"dynamic batching, waiting up to {delay_us} µs" if delay_us else "dynamic batching without waiting"
    )
    sizes = " or ".join(map(str, batching.get("preferred_batch_size", [])))
    return [*parts, f"{said}, preferably {sizes}" if sizes else said]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
