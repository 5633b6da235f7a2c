"""List systems with their models and versions, on disk and in the running Triton."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from gourmet.contracts import SYSTEM_PARAMETER, WEB_PARAMETER
from gourmet.errors import GourmetError
from gourmet.repository.models import DEFAULT_REPOSITORY, RepositoryError, models_in, read_config
from gourmet.repository.versions import version_numbers
from gourmet.served import manifest
from gourmet.served.instances import parameter
from gourmet.stack.connect import connect
from gourmet.stack.run_file import stack_at
from gourmet.stack.supervisor import version_of_stub
from gourmet.systems import registry
from gourmet.triton_client.model_config import as_json

_States = dict[tuple[str, int], tuple[str, str, int | None]]


@dataclass(frozen=True)
class ListedVersion:
    """A version of a model, or a model or system that has none. Unknown values are None or empty."""

    system: str
    model: str = ""
    version: int | None = None
    state: str = ""  # serves, failed, not loaded, broken, no model
    reason: str = ""  # why it is failed or broken
    requests: int | None = None
    deployed: str = ""
    by: str = ""
    bytes: int | None = None
    memory_bytes: int | None = None
    study: bool = False  # a part of another model, or a model that only notebooks ask


def listed(repositories: Iterable[Path], url: str | None) -> list[ListedVersion]:
    """Return all versions, sorted by system; those without one come last. `url` names a running Triton."""
    states, memory = (_states(url), _memory(url)) if url else (None, {})
    rows = [row for model in models_in(repositories) for row in _versions(model, states, memory)]
    on_disk = {(row.model, row.version) for row in rows}
    elsewhere = {key: state for key, state in (states or {}).items() if key not in on_disk}
    owners = _owners(url, {name for (name, _), (state, *_) in elsewhere.items() if state == "serves"})
    rows += [
        ListedVersion(owners.get(model, ""), model, version, *state)
        for (model, version), state in elsewhere.items()
    ]
    named, broken = {row.system for row in rows} - {""}, registry.broken()
    broken |= dict.fromkeys(named - {*registry.names(), *broken}, "models name it, but it has no folder")
    rows += [ListedVersion(name, state="broken", reason=reason) for name, reason in broken.items()]
    rows += [ListedVersion(name, state="no model") for name in {*registry.names()} - {*broken} - named]
    return sorted(rows, key=lambda row: (not row.system, row.system, row.model, row.version or 0))


def owner_of(model: Path) -> tuple[str, str]:
    """Return the system that a model's config names, and the fault of the model's folder, empty if none."""
    try:
        system = parameter(as_json(read_config(model)), SYSTEM_PARAMETER)
    except RepositoryError as exc:
        data_systems = [name for name in registry.names() if registry.is_data(name)]
        named_after = [name for name in data_systems if re.fullmatch(rf"{name}(_onnx|_stream)?", model.name)]
        return next(iter(named_after), ""), str(exc)
    return system, "" if version_numbers(model) else f"{model} has no version"


def _versions(model: Path, states: _States | None, memory: dict[Path, int]) -> Iterator[ListedVersion]:
    system, fault = owner_of(model)
    if fault:
        yield ListedVersion(system, model.name, state="broken", reason=fault)
        return
    study = model.parent == DEFAULT_REPOSITORY.resolve() and (
        not system or bool(parameter(as_json(read_config(model)), WEB_PARAMETER))
    )
    for folder in (model / str(number) for number in version_numbers(model)):
        version = int(folder.name)
        default = ("", "", None) if states is None else ("not loaded", "", None)
        state, reason, requests = (states or {}).get((model.name, version), default)
        facts = manifest.facts(folder)
        if not facts and (path := folder / manifest.MANIFEST).exists():
            state, reason = "broken", f"{path} cannot be read as a manifest"
        deployed = facts.get("deployed", {})
        changed = datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat(timespec="seconds")
        yield ListedVersion(
            system,
            model.name,
            version,
            state,
            reason,
            requests,
            deployed=str(deployed.get("at", changed)),
            by=str(deployed.get("by", "")),
            bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            memory_bytes=memory.get(folder.resolve()),
            study=study,
        )


def _states(url: str) -> _States:
    """Return state, reason and number of requests of the versions in a running Triton."""
    states: _States = {}
    with connect(url) as triton:
        for entry in triton.versions():
            reason = next(iter(entry.get("reason", "").splitlines()), "")
            if entry.get("state") == "UNAVAILABLE" and reason != "unloaded" and entry.get("version"):
                states[entry["name"], int(entry["version"])] = "failed", reason, None
        for model in triton.statistics():
            states[model.name, int(model.version)] = "serves", "", model.requests + model.failures
    return states


def _owners(url: str | None, models: Iterable[str]) -> dict[str, str]:
    """Return the systems of served models whose folders are not here, as the running Triton reports them."""
    systems: dict[str, str] = {}
    if url and (names := sorted(models)):
        with connect(url) as triton:
            for name in names:
                with contextlib.suppress(GourmetError):  # the model was unloaded meanwhile
                    systems[name] = triton.describe(name).system
    return systems


def _memory(url: str) -> dict[Path, int]:
    """Return the memory of each version's processes, if this user's `gourmet up` started them."""
    held: dict[Path, int] = {}
    if stack := stack_at(url):
        for process in psutil.Process(stack.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # the process ended
                if version := version_of_stub(process):
                    held[version] = held.get(version, 0) + process.memory_info().rss
    return held
