"""The exercises of known serving labs, on the models that systems name.

A system's `scenarios.toml` has a table for each of its exercises: its kind, and the arguments of that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

from gourmet.errors import UsageError
from gourmet.measure.scenario import Scenario
from gourmet.measure.scenarios import foundation, loops, serving_lab
from gourmet.systems import registry

_KINDS: Final[Mapping[str, Callable[..., Scenario]]] = {
    "foundation": foundation.scenario,
    "instances_and_delays": serving_lab.instances_and_delays,
    "loops": loops.scenario,
    "queue_delay": serving_lab.queue_delay,
    "serving_lab": serving_lab.scenario,
}


def known() -> dict[str, dict[str, Any]]:
    """Return the arguments of every exercise that a system names."""
    arguments: dict[str, dict[str, Any]] = {}
    for system in registry.names():
        if (named := registry.folder_of(system) / "scenarios.toml").exists():
            arguments |= tomllib.loads(named.read_text(encoding="utf-8"))
    return arguments


def load(name: str, model: str | None = None) -> Scenario:
    """Load an exercise; `model` replaces the model of an exercise about a single one."""
    arguments = known()[name]
    if model is not None:
        if "model" not in arguments:
            raise UsageError(f"the scenario {name} is about models of its own: drop --model")
        arguments["model"] = model
    return _KINDS[arguments.pop("kind")](name=name, **arguments)
