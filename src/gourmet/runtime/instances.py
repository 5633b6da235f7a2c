"""What one Triton instance of a model takes: CPU threads, a device, and on a CPU an engine and a precision.

Standard library only: the served models and the ONNX Runtime backend import it inside Triton.
`model_config` is the parsed `args["model_config"]` that Triton hands to `initialize`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from gourmet.errors import GourmetError

T = TypeVar("T")
# The name NVIDIA's onnxruntime backend uses; 0 or nothing leaves the choice to us.
THREADS_PARAMETER: Final = "intra_op_thread_count"
# Which engine runs a model on the CPU, and in which precision. Other Tritons pass over our own parameters.
ENGINE_PARAMETER: Final = "cpu_engine"
ONNX_RUNTIME: Final = "onnxruntime"
TORCH: Final = "torch"
ENGINES: Final = (ONNX_RUNTIME, TORCH)
PRECISION_PARAMETER: Final = "cpu_precision"
FP32: Final = "fp32"
INT8: Final = "int8"
PRECISIONS: Final = (FP32, INT8)
# Of a version that has its network in several.
CPU_FILES: Final = {FP32: "model.onnx", INT8: "model_int8.onnx"}
# Of version 2 and 1: what a process's group is in its list, where groups are mounted, and quota and period.
_CGROUPS: Final = (
    (r"^0::/(.*)$", "sys/fs/cgroup", ("cpu.max",)),
    (r"^\d+:(?:.*,)?cpu(?:,.*)?:/(.*)$", "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
)
# What Triton was given as --model-config-name, with which it prefers configs/NAME.pbtxt to config.pbtxt.
CONFIG_NAME_ENV: Final = "MODEL_CONFIG_NAME"
_SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Device:
    """Where an instance should run; `required` is false where the CPU will do as well."""

    kind: Literal["cpu", "cuda"]
    index: int = 0
    required: bool = True

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU: Final = Device("cpu")


def opened_on(device: Device, open_on: Callable[[Device], T], warn: Callable[[str], None], model: str) -> T:
    """What `open_on` opens there, or on the CPU where the device is not required and cannot be had."""
    try:
        return open_on(device)
    except GourmetError as exc:
        if device.required:
            raise
        warn(f"{model} runs on the CPU instead of {device}: {exc}")
        return open_on(CPU)


def parameter(model_config: Mapping[str, Any], name: str) -> str:
    """A parameter of the config as text, empty where it is not set."""
    value: Mapping[str, Any] = model_config.get("parameters", {}).get(name, {})
    return str(value.get("string_value", "")).strip()


def integer_parameter(model_config: Mapping[str, Any], name: str) -> int:
    """A parameter of the config that must be a whole number of at least 0, which it is if not set."""
    text = parameter(model_config, name) or "0"
    if not text.isascii() or not text.isdigit():
        raise GourmetError(
            f'parameter "{name}" of model {model_config.get("name", "?")!r} is {text!r}; '
            "it must be a whole number, 0 for the default"
        )
    return int(text)


def switch(model_config: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A parameter of the config that is on or off."""
    text = parameter(model_config, name).lower()
    if not text:
        return default
    if text not in _SWITCHES:
        raise GourmetError(f'parameter "{name}" is {text!r}; it must be one of {", ".join(_SWITCHES)}')
    return _SWITCHES[text]


def instance_count(model_config: Mapping[str, Any]) -> int:
    """How many instances of the model work at the same time, over all its instance groups."""
    total = 0
    for group in model_config.get("instance_group", []):
        if not group.get("passive", False):
            total += int(group.get("count", 1) or 1) * max(1, len(group.get("gpus", [])))
    return max(1, total)


def cpu_threads(model_config: Mapping[str, Any]) -> int:
    """The threads of one instance: what the config says, or an equal share of the CPUs."""
    asked = integer_parameter(model_config, THREADS_PARAMETER)
    return asked or max(1, available_cpus() // instance_count(model_config))


def available_cpus(root: Path = Path("/")) -> int:
    """CPUs this process may keep busy: its affinity, or its cgroup's quota where that is less."""
    cpus = len(os.sched_getaffinity(0))
    # A quota of 1.5 CPUs carries one busy thread; a second one would be throttled half of the time.
    quotas = [int(quota) for quota in _cgroup_quotas(root)]
    return max(1, min([cpus, *quotas]))


def _cgroup_quotas(root: Path) -> Iterator[float]:
    """The CPU limits of this process's control group, of either version, and of every group around it."""
    with contextlib.suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text()
        for line, mount, files in _CGROUPS:
            found = re.search(line, groups, re.MULTILINE)
            # Inside a container the path may be the host's; the mount itself is then the own group.
            own = Path(found[1] if found else "")
            for group in (own, *own.parents):
                with contextlib.suppress(OSError, ValueError):  # no such group, or no limit: "max"
                    texts = [(root / mount / group / name).read_text() for name in files]
                    quota, period = map(int, " ".join(texts).split())
                    if quota > 0:
                        yield quota / period


def wanted_device(args: Mapping[str, str]) -> Device:
    """The device Triton gave this instance, from the `args` of `initialize`.

    Triton turns KIND_AUTO into KIND_GPU wherever it sees a GPU, so only the config file tells
    whether a GPU is required; without that, a framework that cannot use it takes the CPU.
    """
    if args["model_instance_kind"].removeprefix("KIND_") != "GPU":
        return CPU
    folder = Path(args["model_repository"])
    configs = folder / "configs" / f"{os.environ.get(CONFIG_NAME_ENV)}.pbtxt", folder / "config.pbtxt"
    text = next((path.read_text() for path in configs if path.is_file()), "")
    insists = re.search(r"^[^#\n]*\bKIND_GPU\b", text, re.MULTILINE) is not None
    return Device("cuda", int(args["model_instance_device_id"]), required=insists)


def cpu_engine(config: Mapping[str, Any], among: Sequence[str] = ENGINES) -> str:
    """What runs the model on the CPU; ONNX Runtime unless the config names another."""
    return _one_of(config, ENGINE_PARAMETER, among)


def cpu_precision(config: Mapping[str, Any]) -> str:
    """In which precision a model that has several runs on the CPU; fp32 unless the config names another."""
    return _one_of(config, PRECISION_PARAMETER, PRECISIONS)


def _one_of(config: Mapping[str, Any], name: str, among: Sequence[str]) -> str:
    value = parameter(config, name) or among[0]
    if value not in among:
        raise GourmetError(f'parameter "{name}" is {value!r}; it must be one of {", ".join(among)}')
    return value
