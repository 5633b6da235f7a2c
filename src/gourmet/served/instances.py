"""Settings of one Triton instance of a model: CPU threads, device, and on a CPU the engine and the precision.

Standard library only: the served models and the ONNX Runtime backend import it inside Triton.
`model_config` is the parsed `args["model_config"]` that Triton passes to `initialize`.
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
# The name in NVIDIA's onnxruntime backend. 0 or no value: an equal share of the CPUs.
THREADS_PARAMETER: Final = "intra_op_thread_count"
# Our own parameters: the engine and the precision of a model on the CPU. Other backends ignore them.
ENGINE_PARAMETER: Final = "cpu_engine"
ONNX_RUNTIME: Final = "onnxruntime"
TORCH: Final = "torch"
ENGINES: Final = (ONNX_RUNTIME, TORCH)
PRECISION_PARAMETER: Final = "cpu_precision"
FP32: Final = "fp32"
INT8: Final = "int8"
PRECISIONS: Final = (FP32, INT8)
# The files of a version that has its network in both precisions.
CPU_FILES: Final = {FP32: "model.onnx", INT8: "model_int8.onnx"}
# cgroup v2 and v1: the line of the process's group, the mount point, and the files of quota and period.
_CGROUPS: Final = (
    (r"^0::/(.*)$", "sys/fs/cgroup", ("cpu.max",)),
    (r"^\d+:(?:.*,)?cpu(?:,.*)?:/(.*)$", "sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
)
# The value of Triton's --model-config-name: Triton prefers configs/NAME.pbtxt to config.pbtxt.
CONFIG_NAME_ENV: Final = "MODEL_CONFIG_NAME"
_SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Device:
    """The device of an instance. It falls back to the CPU if the device is not `required`."""

    kind: Literal["cpu", "cuda"]
    index: int = 0
    required: bool = True

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU: Final = Device("cpu")


def open_or_fall_back(
    device: Device, open_on: Callable[[Device], T], warn: Callable[[str], None], model: str
) -> T:
    """Call `open_on` with the device; with the CPU if that fails and the device is not required."""
    try:
        return open_on(device)
    except GourmetError as exc:
        if device.required:
            raise
        warn(f"{model} runs on the CPU instead of {device}: {exc}")
        return open_on(CPU)


def parameter(model_config: Mapping[str, Any], name: str) -> str:
    """Return a parameter of the config as text, empty if it is not set."""
    value: Mapping[str, Any] = model_config.get("parameters", {}).get(name, {})
    return str(value.get("string_value", "")).strip()


def integer_parameter(model_config: Mapping[str, Any], name: str) -> int:
    """Return a parameter of the config as a whole number of at least 0; 0 if it is not set."""
    text = parameter(model_config, name) or "0"
    if not text.isascii() or not text.isdigit():
        raise GourmetError(
            f'parameter "{name}" of model {model_config.get("name", "?")!r} is {text!r}; '
            "it must be a whole number, 0 for the default"
        )
    return int(text)


def switch(model_config: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a parameter of the config as a boolean."""
    text = parameter(model_config, name).lower()
    if not text:
        return default
    if text not in _SWITCHES:
        raise GourmetError(f'parameter "{name}" is {text!r}; it must be one of {", ".join(_SWITCHES)}')
    return _SWITCHES[text]


def instance_count(model_config: Mapping[str, Any]) -> int:
    """Return the number of instances of the model that work at the same time, over all instance groups."""
    total = 0
    for group in model_config.get("instance_group", []):
        if not group.get("passive", False):
            total += int(group.get("count", 1) or 1) * max(1, len(group.get("gpus", [])))
    return max(1, total)


def cpu_threads(model_config: Mapping[str, Any]) -> int:
    """Return the number of threads of one instance: from the config, or an equal share of the CPUs."""
    configured = integer_parameter(model_config, THREADS_PARAMETER)
    return configured or max(1, available_cpus() // instance_count(model_config))


def available_cpus(root: Path = Path("/")) -> int:
    """Return how many CPUs this process may use: its affinity, or its cgroup's quota if that is less."""
    cpus = len(os.sched_getaffinity(0))
    # A quota of 1.5 CPUs is enough for one busy thread; a second one would be throttled half of the time.
    quotas = [int(quota) for quota in _cgroup_quotas(root)]
    return max(1, min([cpus, *quotas]))


def _cgroup_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of this process's control group and of every group around it."""
    with contextlib.suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text()
        for line, mount, files in _CGROUPS:
            match = re.search(line, groups, re.MULTILINE)
            # Inside a container the path may be the host's; the mount itself is then the own group.
            own = Path(match[1] if match else "")
            for group in (own, *own.parents):
                with contextlib.suppress(OSError, ValueError):  # no such group, or no limit: "max"
                    texts = [(root / mount / group / name).read_text() for name in files]
                    quota, period = map(int, " ".join(texts).split())
                    if quota > 0:
                        yield quota / period


def wanted_device(args: Mapping[str, str]) -> Device:
    """Return the device of this instance, from the `args` of `initialize`.

    Triton turns KIND_AUTO into KIND_GPU if it sees a GPU. So only the config file shows whether a GPU is
    required; if it is not, a framework that cannot use the GPU falls back to the CPU.
    """
    if args["model_instance_kind"].removeprefix("KIND_") != "GPU":
        return CPU
    folder = Path(args["model_repository"])
    configs = folder / "configs" / f"{os.environ.get(CONFIG_NAME_ENV)}.pbtxt", folder / "config.pbtxt"
    text = next((path.read_text() for path in configs if path.is_file()), "")
    is_required = re.search(r"^[^#\n]*\bKIND_GPU\b", text, re.MULTILINE) is not None
    return Device("cuda", int(args["model_instance_device_id"]), required=is_required)


def cpu_engine(config: Mapping[str, Any], allowed: Sequence[str] = ENGINES) -> str:
    """Return the engine that runs the model on the CPU. The default is ONNX Runtime."""
    return _one_of(config, ENGINE_PARAMETER, allowed)


def cpu_precision(config: Mapping[str, Any]) -> str:
    """Return the precision in which a model that has both runs on the CPU. The default is fp32."""
    return _one_of(config, PRECISION_PARAMETER, PRECISIONS)


def _one_of(config: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str:
    value = parameter(config, name) or allowed[0]
    if value not in allowed:
        raise GourmetError(f'parameter "{name}" is {value!r}; it must be one of {", ".join(allowed)}')
    return value
