"""Whether a machine has room for more instances of a model, by its processors and what an instance holds."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import psutil

from gourmet.runtime.instances import available_cpus, instance_count
from gourmet.serving.run_file import stack_at
from gourmet.serving.stub_watchdog import version_of_stub

# More only wait for a processor, and each costs memory and seconds to load. Of a machine elsewhere the
# processors are not known.
_FOR_EACH_CPU: Final = 4
_ELSEWHERE: Final = 64
# Of the memory that is free, what the machine keeps for everything else.
_KEPT_FREE: Final = 0.2


def problem(url: str, now: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Why the instances of `wanted` are too many for the Triton at `url`, which has `now`; empty if not."""
    after = instance_count(wanted)
    if after <= instance_count(now):
        return ""
    if any(group.get("kind") == "KIND_GPU" for group in wanted["instance_group"]):
        return ""
    stack = stack_at(url)
    cpus = available_cpus()
    max_instances = _FOR_EACH_CPU * cpus if stack else _ELSEWHERE
    if after > max_instances:
        where = f"{cpus} CPUs" if stack else "a machine that is not known here"
        return (
            f"{after} instances are more than {max_instances}, which is the most that make sense on {where}"
        )
    # The new instances are made beside the old ones.
    needed = after * (_held_by_each(stack.pid, str(now["name"])) if stack else 0)
    free = psutil.virtual_memory().available * (1 - _KEPT_FREE)
    if needed > free:
        return (
            f"{after} instances take some {needed / 1e9:.1f} GB beside those that serve, by what one holds "
            f"today, and {free / 1e9:.1f} GB are free here"
        )
    return ""


def _held_by_each(pid: int, model: str) -> float:
    """Bytes that one process of `model` alone holds, on average; 0 where it has none."""
    held = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended
            version = version_of_stub(process)
            if version and version.parent.name == model:
                held.append(process.memory_full_info().uss)
    return float(sum(held)) / max(1, len(held))
