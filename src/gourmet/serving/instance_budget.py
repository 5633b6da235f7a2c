"""Check whether a machine has the CPUs and the memory for more instances of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import psutil

from gourmet.runtime.instances import available_cpus, instance_count
from gourmet.serving.run_file import stack_at
from gourmet.serving.stub_watchdog import version_of_stub

# More instances only wait for a CPU, and each costs memory and seconds to load.
_MAX_PER_CPU: Final = 4
_MAX_ELSEWHERE: Final = 64  # the CPUs of another machine are not known
# The share of the free memory that stays free.
_KEPT_FREE: Final = 0.2


def problem(url: str, current: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return why the Triton at `url` has no room for the instances of the config `new`; empty if it has."""
    after = instance_count(new)
    if after <= instance_count(current):
        return ""
    if any(group.get("kind") == "KIND_GPU" for group in new["instance_group"]):
        return ""
    stack = stack_at(url)
    cpus = available_cpus()
    max_instances = _MAX_PER_CPU * cpus if stack else _MAX_ELSEWHERE
    if after > max_instances:
        where = f"{cpus} CPUs" if stack else "a remote machine"
        return f"{after} instances are more than the {max_instances} that make sense on {where}"
    # The new instances start while the old ones still run.
    needed = after * (_bytes_per_process(stack.pid, str(current["name"])) if stack else 0)
    free = psutil.virtual_memory().available * (1 - _KEPT_FREE)
    if needed > free:
        return (
            f"{after} instances need about {needed / 1e9:.1f} GB in addition to the current ones, but only "
            f"{free / 1e9:.1f} GB are free here"
        )
    return ""


def _bytes_per_process(pid: int, model: str) -> float:
    """Return the mean memory of a process of `model` that it shares with no other; 0 if it has none."""
    sizes = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process ended
            version = version_of_stub(process)
            if version and version.parent.name == model:
                sizes.append(process.memory_full_info().uss)
    return float(sum(sizes)) / max(1, len(sizes))
