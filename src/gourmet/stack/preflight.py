"""Checks before the start. Each error names the problem and the next step."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from gourmet.contracts import SYSTEM_PARAMETER, WEB_PARAMETER
from gourmet.errors import GourmetError
from gourmet.repository.models import RepositoryError, models_in, read_config
from gourmet.repository.versions import newest_version
from gourmet.served import manifest
from gourmet.served.instances import parameter
from gourmet.stack import run_file
from gourmet.systems import registry
from gourmet.triton_client.model_config import Config, as_json

# Measured with every model and a hundred clients: Triton has 82 files and connections open, a web process
# 101.
_OPEN_FILES: Final = 256


class NotReadyToStart(GourmetError):
    """The machine or the options do not allow a start."""


def check_ports(host: str, ports: Mapping[str, int]) -> None:
    """Raise NotReadyToStart unless every port can be bound; `ports` maps options to their ports."""
    for option, port in ports.items():
        for stack in run_file.running_stacks():
            if stack.uses(port):
                page = f", the page {stack.web_url}" if stack.web_url else ""
                raise NotReadyToStart(
                    f"another `gourmet up` runs (process {stack.pid}, Triton at {stack.http_url}{page}) and "
                    f"uses port {port}: end it with Ctrl-C or `kill {stack.pid}`, or choose another port "
                    f"with {option}"
                )
        try:
            with socket.socket() as probe:
                # As the servers do: a port is free while its last connections time out.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as exc:
            raise NotReadyToStart(
                f"port {port} of {host} is in use or cannot be bound ({exc.strerror}): end the program that "
                f"uses it (`ss -ltnp 'sport = :{port}'` names it), or choose another port with {option}"
            ) from exc


def check_open_files() -> None:
    """Raise NotReadyToStart unless a process may open as many files as Triton and the web app need."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < _OPEN_FILES:
        raise NotReadyToStart(
            f"a process may open {allowed} files and connections here (`ulimit -n`), but Triton and the web "
            f"app need {_OPEN_FILES}: run `ulimit -n 1024` first, in a new shell if this one refuses"
        )


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that no other process gets until this one ends.

    Each stays bound to a socket that never listens. A server that binds with SO_REUSEADDR, as all do here,
    can listen on it, stop, and listen again.
    """
    ports = []
    for _ in range(count):
        probe = socket.socket()
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        ports.append(probe.getsockname()[1])
        probe.detach()  # the process's end closes it
    return ports


def check_repositories(repositories: Iterable[Path]) -> dict[str, Config]:
    """Return every model in `repositories` with its config; the config is empty if it cannot be read.

    Raise NotReadyToStart unless each repository can be read and no model is in two of them; one in the user's
    own replaces that in another.
    """
    served: dict[str, Config] = {}
    for model in models_in(repositories):
        if model.name in served:
            raise NotReadyToStart(f"more than one repository has {model.name}: rename or remove one")
        served[model.name] = {}
        # Triton reports a bad config itself, and serves the other models.
        with contextlib.suppress(RepositoryError):
            served[model.name] = as_json(read_config(model))
    return dict(sorted(served.items()))


def damaged(repositories: Iterable[Path], names: Collection[str]) -> dict[str, str]:
    """Return the models whose newest version is not as its manifest says, with the reason.

    NVIDIA's backends read no manifests.
    """
    reasons = {}
    for model in models_in(repositories):
        if model.name not in names:
            continue
        # Triton reports a bad config, or that there is no version.
        with contextlib.suppress(RepositoryError):
            config, newest = as_json(read_config(model)), newest_version(model)
            try:
                manifest.check_files(None, config, newest)
            except manifest.ManifestError as exc:
                reasons[model.name] = str(exc)
    return reasons


def held_back(served: Mapping[str, Config], configured: Collection[str]) -> list[str]:
    """Return the models for study: they are loaded when a verb first asks for one, to save time and memory.

    Their configs have the parameter { key: "load" value: { string_value: "asked" } }. A model that the web
    app is configured to ask is loaded at once.
    """
    needed = {*configured, *(part for name in configured for part in asked_by(served.get(name, {})))}
    return [name for name in served if waits_until_asked(served[name]) and name not in needed]


def of_systems(served: Mapping[str, Config], systems: Collection[str]) -> dict[str, Config]:
    """Return the models of these systems."""
    return {name: config for name, config in served.items() if parameter(config, SYSTEM_PARAMETER) in systems}


def waits_until_asked(config: Config) -> bool:
    return parameter(config, "load") == "asked"


def asked_by(config: Config) -> list[str]:
    """Return the models that a model asks inside Triton."""
    return [name for name in parameter(config, "asks").split(",") if name]


def models_of_web(served: Mapping[str, Config]) -> list[str]:
    """Return the models that visitors of the web app may choose by name."""
    return [
        name
        for name, config in served.items()
        if parameter(config, SYSTEM_PARAMETER) and not parameter(config, WEB_PARAMETER)
    ]


def configured_models(env: Mapping[str, str], served: Mapping[str, Config]) -> dict[str, str]:
    """Return the configured model of each system; raise NotReadyToStart unless it is served and its own.

    A system is left out if its variable is not set and its default model is for study or not served: a user's
    repository need not have every system.
    """
    systems = {name: parameter(config, SYSTEM_PARAMETER) for name, config in served.items()}
    configured = {}
    for system, contract in registry.load_all().items():
        chosen = env.get(contract.model_variable)
        name = chosen or contract.default_model
        if systems.get(name) in ("", system):
            if chosen or not waits_until_asked(served[name]):
                configured[system] = name
        elif chosen:
            what = f"a model of the system {systems[name]!r}" if name in systems else "not a served model"
            usable = ", ".join(model for model, owner in systems.items() if owner in ("", system))
            raise NotReadyToStart(
                f"{contract.model_variable} is {name!r}, which is {what}: choose one of {usable}"
            )
    return configured
