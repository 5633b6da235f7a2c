"""A change to a model's config, as a value: what to turn, and the config that results.

Configs are handled as Triton's own JSON, the form in which the running server gives and takes them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Final

from gourmet.client.model_config import Config, merges, summary
from gourmet.errors import UsageError
from gourmet.runtime.instances import (
    ENGINE_PARAMETER,
    FP32,
    PRECISION_PARAMETER,
    THREADS_PARAMETER,
    TORCH,
    parameter,
)


@dataclass(frozen=True)
class Change:
    """What to turn; None leaves a thing as it is."""

    instances: int | None = None
    threads: int | None = None
    max_batch: int | None = None
    dynamic_batching: bool | None = None
    delay_us: int | None = None
    preferred_batches: tuple[int, ...] | None = None
    gpus: tuple[int, ...] | None = None
    cpu: bool | None = None
    response_cache: bool | None = None
    versions: tuple[int, ...] | None = None  # none of them: all that there are
    engine: str | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.cpu and self.gpus:
            raise UsageError("an instance group is on the CPU or on GPUs: give --cpu or --gpus")
        if self.dynamic_batching is False and (self.delay_us is not None or self.preferred_batches):
            raise UsageError("--delay and --preferred are settings of dynamic batching: drop --no-dynamic")

    def __bool__(self) -> bool:
        return self != Change()

    def over(self, other: Change) -> Change:
        """This change on top of `other`: where both turn a thing, this one wins."""
        mine = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **mine)


# A photo model as the known labs have it, for comparisons with them.
AS_IN_LABS: Final = Change(engine=TORCH, precision=FP32, preferred_batches=(4,))
# The exercises of the food lab, by name.
VARIANTS: Final[dict[str, Change]] = {
    "one-instance": Change(instances=1, dynamic_batching=False),
    "dynamic-batching": Change(instances=1, dynamic_batching=True, delay_us=100),
    "two-instances": Change(instances=2, dynamic_batching=False),
    "four-instances": Change(instances=4, dynamic_batching=False),
    "two-gpus": Change(instances=1, gpus=(0, 1)),
}


def changed(config: Config, change: Change) -> Config:
    """A copy of `config` with `change` made."""
    config = copy.deepcopy(config)
    if change.max_batch is not None:
        config["max_batch_size"] = change.max_batch
    _change_instances(config, change)
    _change_engine(config, change)
    if change.threads is not None:
        _set_parameter(config, THREADS_PARAMETER, str(change.threads))
    _change_batching(config, change)
    if change.versions is not None:
        named = {"specific": {"versions": list(change.versions)}}
        config["version_policy"] = named if change.versions else {"all": {}}
    if change.response_cache is not None:
        config["response_cache"] = {"enable": change.response_cache}
    return config


def _change_engine(config: Config, change: Change) -> None:
    """Only a model whose config names an engine or a precision has a choice of it."""
    for flag, name, value in (
        ("--engine", ENGINE_PARAMETER, change.engine),
        ("--precision", PRECISION_PARAMETER, change.precision),
    ):
        if value is None:
            continue
        if not parameter(config, name) or config.get("backend") == "onnxruntime":
            raise UsageError(f"{config['name']} has no choice of that: {flag} does not apply")
        _set_parameter(config, name, value)


def _set_parameter(config: Config, name: str, value: str) -> None:
    config.setdefault("parameters", {})[name] = {"string_value": value}


def _change_instances(config: Config, change: Change) -> None:
    if change.instances is None and not change.cpu and change.gpus is None:
        return
    groups = config.get("instance_group") or [{"kind": "KIND_AUTO"}]
    # One group that says it all; a server's answer carries a name and defaults that belong to the old one.
    group = {"kind": groups[0].get("kind", "KIND_AUTO"), "gpus": groups[0].get("gpus", [])}
    group["count"] = change.instances or groups[0].get("count", 1)
    if change.cpu:
        group.update(kind="KIND_CPU", gpus=[])
    if change.gpus:
        group.update(kind="KIND_GPU", gpus=list(change.gpus))
    config["instance_group"] = [group]
    if group["count"] == 1:
        # With any queue policy Triton takes a request from the queue only when an instance is free, and its
        # batcher may sleep through that moment for half a second (docs/measuring.md).
        config.get("dynamic_batching", {}).pop("default_queue_policy", None)
    # Where nothing but instance_group differs, Triton keeps the running instances as they are and starts
    # new ones with the old config, so that all hold the wrong share of the CPU's threads.
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
            "a time and there is nothing to batch; export it with a batch dimension first"
        )
    batching = config.setdefault("dynamic_batching", {})
    if not merges(batching):
        del batching["preferred_batch_size"]
    if change.delay_us is not None:
        batching["max_queue_delay_microseconds"] = change.delay_us
    if change.preferred_batches is not None:
        if too_large := [size for size in change.preferred_batches if size > largest]:
            raise UsageError(f"preferred batch {too_large[0]} is above max_batch_size {largest}")
        batching["preferred_batch_size"] = list(change.preferred_batches)


def strayed(running: Config, on_disk: Config) -> bool:
    """Whether what serves is not what the files say, in what this module changes."""
    groups, said = running.get("instance_group") or [{}], copy.deepcopy(on_disk)
    # What a config leaves to Triton, a server's answer says.
    said["instance_group"] = [
        {**groups[0], **{name: value for name, value in each.items() if value != "KIND_AUTO"}}
        for each in on_disk.get("instance_group") or groups
    ]
    if (batching := said.get("dynamic_batching")) is not None:
        said["dynamic_batching"] = {**(running.get("dynamic_batching") or {}), **batching}
        if "max_queue_delay_microseconds" not in batching:
            said["dynamic_batching"]["max_queue_delay_microseconds"] = 0
    return summary(running) != summary(said)
