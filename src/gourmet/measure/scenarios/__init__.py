"""The exercises of the known serving labs: how each is done here, and on which models as systems say.

A system's `scenarios.py` names its exercises: name -> (a kind, its arguments).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gourmet.errors import UsageError
from gourmet.measure.scenario import Scenario
from gourmet.measure.scenarios import delays, foundation, serving_lab
from gourmet.systems import registry

_KINDS: Final[Mapping[str, Callable[..., Scenario]]] = {
    "foundation": foundation.scenario,
    "instances_and_delays": delays.instances_and_delays,
    "one_gpu": serving_lab.one_gpu,
    "queue_delay": delays.queue_delay,
    "serving_lab": serving_lab.scenario,
}


def known() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Every exercise that a system names, with its kind and arguments."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for system in registry.names():
        if (registry.folder_of(system) / "scenarios.py").exists():
            found |= registry.piece(system, "scenarios", "SCENARIOS", dict)
    return found


def load(name: str, model: str | None = None) -> Scenario:
    """An exercise, about another `model` where it is about a single one."""
    kind, arguments = known()[name]
    if model is None:
        return _KINDS[kind](name=name, **arguments)
    if "model" not in arguments:
        raise UsageError(f"the scenario {name} is about models of its own: drop --model")
    return _KINDS[kind](name=name, **{**arguments, "model": model})
