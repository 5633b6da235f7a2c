"""What is asked before anything is started; what is wrong is said in one sentence with the next step."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from gourmet import repository
from gourmet.client.model_config import Config, as_json
from gourmet.contracts import SYSTEM_PARAMETER
from gourmet.errors import GourmetError
from gourmet.runtime.instances import parameter
from gourmet.systems import registry

# With every model and a hundred clients Triton has 82 files and connections open, and a web process 101.
_OPEN_FILES: Final = 256


class NotReadyToStart(GourmetError):
    """Something on this machine or in the request stands in the way of starting."""


def check_ports(host: str, ports: Mapping[str, int]) -> None:
    """Raise unless every port can be bound; `ports` maps the option that sets a port to the port."""
    for option, port in ports.items():
        try:
            with socket.socket() as probe:
                # As the servers do: a port whose last connections are still fading away is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as exc:
            raise NotReadyToStart(
                f"port {port} of {host} is in use or cannot be bound ({exc.strerror}): end the program that "
                f"has it (`ss -ltnp 'sport = :{port}'` names it), or choose another with {option}"
            ) from exc


def check_open_files() -> None:
    """Raise unless a process may have as many files and connections open as Triton and the web app need."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < _OPEN_FILES:
        raise NotReadyToStart(
            f"a process may have {allowed} files and connections open here (`ulimit -n`), and Triton and the "
            f"web app need {_OPEN_FILES}: run `ulimit -n 1024` first, in a new shell if this one refuses"
        )


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on; all are held open until all are known, so they differ."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def check_repositories(repositories: Iterable[Path]) -> dict[str, Config]:
    """Every model in `repositories` with its config, which is empty where it cannot be read.

    Raise unless each repository can be read and no model is in two of them.
    """
    served: dict[str, Config] = {}
    for path in repositories:
        names = repository.model_names(path)
        if twice := set(names) & set(served):
            raise NotReadyToStart(
                f"more than one repository has {', '.join(sorted(twice))}: rename or drop one"
            )
        for name in names:
            served[name] = {}
            # Triton says itself what is wrong with a config, and serves the others.
            with contextlib.suppress(repository.RepositoryError):
                served[name] = as_json(repository.read_config(path / name))
    return dict(sorted(served.items()))


def loaded_early(served: Mapping[str, Config], configured: Collection[str]) -> list[str]:
    """The models to start Triton with; none if that is all of them.

    A model whose config says so is loaded when the others answer, since each takes its time, and starting
    is what one waits for: parameters { key: "load" value: { string_value: "late" } }.
    """
    early = [name for name in served if name in configured or parameter(served[name], "load") != "late"]
    return early if len(early) < len(served) else []


def configured_models(env: Mapping[str, str], served: Mapping[str, Config]) -> dict[str, str]:
    """For every system, the model that the environment chose for it, which must be served and its own.

    A system whose variable is not set is left out where its default model is not served: a user's own
    repository need not hold all that this project knows.
    """
    systems = {name: parameter(config, SYSTEM_PARAMETER) for name, config in served.items()}
    found = {}
    for system, known in registry.load_all().items():
        chosen = env.get(known.model_variable)
        name = chosen or known.default_model
        if systems.get(name) in ("", system):
            found[system] = name
        elif chosen:
            what = f"a model of the system {systems[name]!r}" if name in systems else "not a served model"
            usable = ", ".join(other for other, its in systems.items() if its in ("", system))
            raise NotReadyToStart(
                f"{known.model_variable} is {name!r}, which is {what}: choose one of {usable}"
            )
    return found
