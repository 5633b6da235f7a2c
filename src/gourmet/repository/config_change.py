"""A change to a model's config, as a value.

Configs are Triton's JSON, as the running server returns and accepts them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Final

from gourmet.errors import UsageError
from gourmet.served.instances import (
    PRECISION_PARAMETER,
    THREADS_PARAMETER,
    parameter,
)
from gourmet.triton_client.model_config import Config, merges, summary


@dataclass(frozen=True)
class Change:
    """The settings to change; None leaves a setting unchanged."""

    instances: int | None = None
    threads: int | None = None
    max_batch: int | None = None
    dynamic_batching: bool | None = None
    delay_us: int | None = None
    preferred_batches: tuple[int, ...] | None = None
    gpus: tuple[int, ...] | None = None
    cpu: bool | None = None
    versions: tuple[int, ...] | None = None  # empty: all versions
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.cpu and self.gpus:
            raise UsageError("an instance group runs on the CPU or on GPUs: give either --cpu or --gpus")
        if self.dynamic_batching is False and (self.delay_us is not None or self.preferred_batches):
            raise UsageError("--delay and --preferred are settings of dynamic batching: omit --no-dynamic")

    def __bool__(self) -> bool:
        return self != Change()

    def over(self, other: Change) -> Change:
        """Combine this change with `other`. If both change a setting, this one wins."""
        settings = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **settings)


# The exercises of the food lab, by name.
VARIANTS: Final[dict[str, Change]] = {
    "one-instance": Change(instances=1, dynamic_batching=False),
    "dynamic-batching": Change(instances=1, dynamic_batching=True, delay_us=100),
    "two-instances": Change(instances=2, dynamic_batching=False),
    "four-instances": Change(instances=4, dynamic_batching=False),
    "two-gpus": Change(instances=1, gpus=(0, 1)),
}


def changed(config: Config, change: Change) -> Config:
    """Return a changed copy of `config`."""
    config = copy.deepcopy(config)
    if change.max_batch is not None:
        config["max_batch_size"] = change.max_batch
    _change_instances(config, change)
    _change_precision(config, change)
    if change.threads is not None:
        _set_parameter(config, THREADS_PARAMETER, str(change.threads))
    _change_batching(config, change)
    if change.versions is not None:
        specific = {"specific": {"versions": list(change.versions)}}
        config["version_policy"] = specific if change.versions else {"all": {}}
    return config


def _change_precision(config: Config, change: Change) -> None:
    """Set the precision; only a model whose config names one has a choice."""
    if change.precision is None:
        return
    if not parameter(config, PRECISION_PARAMETER) or config.get("backend") == "onnxruntime":
        raise UsageError(f"{config['name']} has only one precision: omit --precision")
    _set_parameter(config, PRECISION_PARAMETER, change.precision)


def _set_parameter(config: Config, name: str, value: str) -> None:
    config.setdefault("parameters", {})[name] = {"string_value": value}


def _change_instances(config: Config, change: Change) -> None:
    if change.instances is None and not change.cpu and change.gpus is None:
        return
    groups = config.get("instance_group") or [{"kind": "KIND_AUTO"}]
    # A new group, since the server's group has a name and defaults that belong to the old settings.
    group = {"kind": groups[0].get("kind", "KIND_AUTO"), "gpus": groups[0].get("gpus", [])}
    group["count"] = change.instances or groups[0].get("count", 1)
    if change.cpu:
        group.update(kind="KIND_CPU", gpus=[])
    if change.gpus:
        group.update(kind="KIND_GPU", gpus=list(change.gpus))
    config["instance_group"] = [group]
    if group["count"] == 1:
        # With a queue policy, Triton takes a request from the queue only when an instance is free, and its
        # batcher may notice that half a second late (docs/measuring.md).
        config.get("dynamic_batching", {}).pop("default_queue_policy", None)
    # If only instance_group differs, Triton keeps the running instances and starts new ones with the old
    # config, so that all have the wrong share of the CPU's threads.
    layout = " ".join(str(part) for part in (group["count"], group["kind"], *group["gpus"]))
    _set_parameter(config, "instance_layout", layout)


def _change_batching(config: Config, change: Change) -> None:
    if change.dynamic_batching is False:
        config.pop("dynamic_batching", None)
        return
    if change.dynamic_batching is None and change.delay_us is None and not change.preferred_batches:
        return
    largest = config.get("max_batch_size", 0)
    if largest < 1:
        raise UsageError(
            f"{config['name']} has max_batch_size {largest}: its network takes one input at "
            "a time, so there is nothing to batch. Export it with a batch dimension first"
        )
    batching = config.setdefault("dynamic_batching", {})
    if not merges(batching):
        del batching["preferred_batch_size"]
    if change.delay_us is not None:
        batching["max_queue_delay_microseconds"] = change.delay_us
    if change.preferred_batches is not None:
        if too_large := [size for size in change.preferred_batches if size > largest]:
            raise UsageError(
                f"preferred batch {too_large[0]} is above max_batch_size {largest}: choose a smaller one"
            )
        batching["preferred_batch_size"] = list(change.preferred_batches)


def differs_from_disk(running: Config, on_disk: Config) -> bool:
    """Return whether the running config differs from the files in a setting that this module changes."""
    groups, expected = running.get("instance_group") or [{}], copy.deepcopy(on_disk)
    # Fill in Triton's defaults, which the running config has.
    expected["instance_group"] = [
        {**groups[0], **{name: value for name, value in group.items() if value != "KIND_AUTO"}}
        for group in on_disk.get("instance_group") or groups
    ]
    if (batching := expected.get("dynamic_batching")) is not None:
        expected["dynamic_batching"] = {**(running.get("dynamic_batching") or {}), **batching}
        if "max_queue_delay_microseconds" not in batching:
            expected["dynamic_batching"]["max_queue_delay_microseconds"] = 0
    return summary(running) != summary(expected)
