"""What can be known to be wrong before anything is started, each said in one sentence with the next step."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gourmet import repository
from gourmet.errors import GourmetError
from gourmet.systems import registry


class NotReadyToStart(GourmetError):
    """Something on this machine or in the request stands in the way of starting."""


@dataclass(frozen=True)
class ConfiguredModel:
    """The model that a system's page asks, and where that was said."""

    system: str
    name: str
    variable: str


def check_ports(host: str, ports: Mapping[str, int]) -> None:
    """Raise unless every port can be bound; `ports` maps the option that sets a port to the port."""
    options: dict[int, str] = {}
    for option, port in ports.items():
        if port in options:
            raise NotReadyToStart(
                f"{option} and {options[port]} are both {port}: choose another port for one"
            )
        options[port] = option
        try:
            with socket.socket() as probe:
                # As the servers do: a port whose last connections are still fading away is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except PermissionError as exc:
            raise NotReadyToStart(
                f"port {port} needs more rights than this user has: choose one above 1023 with {option}"
            ) from exc
        except socket.gaierror as exc:
            raise NotReadyToStart(f"{host!r} is not an address of this machine: {exc.strerror}") from exc
        except OSError as exc:
            raise NotReadyToStart(
                f"port {port} of {host} is in use or cannot be bound ({exc.strerror}): end the program that "
                f"has it (`ss -ltnp 'sport = :{port}'` names it), or choose another with {option}"
            ) from exc


def check_repositories(repositories: Iterable[Path]) -> list[str]:
    """The names of all models in `repositories`; raise unless each can be read and none is there twice."""
    served: list[str] = []
    for path in repositories:
        names = repository.model_names(path)
        if twice := set(names) & set(served):
            raise NotReadyToStart(
                f"more than one repository has {', '.join(sorted(twice))}: rename or drop one"
            )
        served += names
    return sorted(served)


def configured_models(env: Mapping[str, str], served: Collection[str]) -> list[ConfiguredModel]:
    """For every system with a page, the model that the environment chose for it, which must be served.

    A system nobody named a model for is left out where its usual model is not served: a repository
    of somebody's own need not hold all that this project knows.
    """
    found = []
    for system in registry.names():
        contract = registry.room(system, "contract")
        name = env.get(contract.MODEL_ENV) or contract.DEFAULT_MODEL
        if name in served:
            found.append(ConfiguredModel(system, name, contract.MODEL_ENV))
        elif env.get(contract.MODEL_ENV):
            raise NotReadyToStart(
                f"{contract.MODEL_ENV} is {name!r}, which is no served model; served are {', '.join(served)}"
            )
    return found
