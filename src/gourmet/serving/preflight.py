"""What is asked before anything is started; what is wrong is said in one sentence with the next step."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gourmet import repository
from gourmet.client.model_config import Config, as_json
from gourmet.contracts import SYSTEM_PARAMETER, WEB_PARAMETER
from gourmet.errors import GourmetError
from gourmet.runtime.instances import parameter
from gourmet.serving import run_file
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


@contextlib.contextmanager
def claimed(ports: Mapping[str, int]) -> Iterator[None]:
    """Keep any other `gourmet up` of this machine off these ports, which may be bound only seconds from now.

    A claim is a socket's name without a file, which the kernel gives once and takes back with the process.
    Raise where a port is claimed; of several that start at once one gets all, since each asks in this order.
    """
    with contextlib.ExitStack() as held:
        for port, option in sorted((port, option) for option, port in ports.items()):
            claim = held.enter_context(socket.socket(socket.AF_UNIX))
            name = f"\0gourmet-up-{port}"
            try:
                claim.bind(name)
            except OSError as exc:
                if (pid := _listener(name)) == os.getpid():
                    continue  # two options name one port, of which its server says more
                raise NotReadyToStart(
                    f"`gourmet up` runs already{_where(pid)} and has port {port}: end it, with Ctrl-C or "
                    f"`kill {pid or 'PID'}`, or choose another port with {option}"
                ) from exc
            claim.listen()
        yield


def _listener(name: str) -> int:
    """The process that listens at the name of a socket; 0 where it does not yet, or is too busy."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
        asked.setblocking(False)
        asked.connect(name)
        pid, _, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)
    return 0


def _where(pid: int) -> str:
    words = [f"process {pid}"] if pid else []
    for stack in run_file.running_stacks():
        if stack.pid == pid:
            words += [
                f"Triton at {stack.http_url}",
                *([f"the page {stack.web_url}"] if stack.web_url else []),
            ]
    return f" ({', '.join(words)})" if words else ""


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


def held_back(served: Mapping[str, Config], configured: Collection[str]) -> list[str]:
    """The models that are for study, and are loaded when a verb first asks for one.

    Each takes its seconds and its memory, so that its config says so: parameters { key: "load" value:
    { string_value: "asked" } }. One that the web app is configured to ask is loaded like all others.
    """
    needed = {*configured, *(each for name in configured for each in asked_by(served.get(name, {})))}
    return [name for name in served if waits_until_asked(served[name]) and name not in needed]


def of_systems(served: Mapping[str, Config], systems: Collection[str]) -> dict[str, Config]:
    """The models of these systems."""
    return {name: each for name, each in served.items() if parameter(each, SYSTEM_PARAMETER) in systems}


def waits_until_asked(config: Config) -> bool:
    return parameter(config, "load") == "asked"


def asked_by(config: Config) -> list[str]:
    """The models that a model asks inside Triton."""
    return [name for name in parameter(config, "asks").split(",") if name]


def models_of_web(served: Mapping[str, Config]) -> list[str]:
    """Those that the web app answers with where one of them is asked for by name."""
    return [
        name
        for name, config in served.items()
        if parameter(config, SYSTEM_PARAMETER) and not parameter(config, WEB_PARAMETER)
    ]


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
