"""Connect to a running Triton, with its keys if they are known here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from gourmet.errors import echo
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack import api_keys, run_file
from gourmet.stack.preflight import asked_by, check_repositories, waits_until_asked
from gourmet.systems import registry
from gourmet.triton_client import triton as client
from gourmet.triton_client.address import GRPC_ENV, SERVER_ENV, Address
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import ModelUnavailable, NotTriton
from gourmet.triton_client.model_config import Config
from gourmet.triton_client.triton import Triton

_TIMEOUT_S: Final = 30.0
LOADS_WITHIN_S: Final = 180.0


class WorkbenchTriton(Triton):
    """A client that loads a model for study that is asked and not loaded."""

    def _ask_model(self, operation: str, model: str, deadline: Deadline) -> Any:
        try:
            return super()._ask_model(operation, model, deadline)
        except ModelUnavailable as exc:
            model, held_back = exc.model, self._held_back() if exc.is_unloaded else {}
            if model not in held_back:
                raise
        for name in (*asked_by(held_back[model]), model):
            echo(f"loading {name}: it is loaded when it is used", err=True)
            self.load(name)
        return super()._ask_model(operation, model, Deadline(self._timeout_s))

    def _held_back(self) -> dict[str, Config]:
        served = check_repositories(repositories_of(self.address))
        return {name: config for name, config in served.items() if waits_until_asked(config)}


def repositories_of(url: str) -> tuple[Path, ...]:
    """Return the folders of models of the Triton at `url`, empty if they are not known.

    In a container of its own, the lab has the models elsewhere than Triton.
    """
    stack = run_file.stack_at(url)
    known = run_file.content_for(url).get("stack", {}).get("repositories", ())
    named = map(Path, stack.repositories if stack else known)
    return tuple(dict.fromkeys(path if path.is_dir() else DEFAULT_REPOSITORY for path in named))


def connect(url: str, timeout_s: float = _TIMEOUT_S) -> Triton:
    """Return a client of the Triton at `url` (host:port), without sending a request.

    It loads models over gRPC if that address is known, else at `url`.
    """
    return WorkbenchTriton(url, timeout_s, keys=api_keys.headers_for(url), load_address=_grpc_address_of(url))


def _grpc_address_of(url: str) -> str:
    """Return the gRPC address of the Triton at `url` from the environment or its run file, else ""."""
    at, (http, grpc) = Address.of(url), map(os.environ.get, (SERVER_ENV, GRPC_ENV))
    if grpc and http and Address.of(http) == at:
        return grpc if "://" in grpc else f"grpc://{grpc}"
    ports = run_file.content_for(url).get("ports", ())
    return f"grpc://{at.host}:{ports[1]}" if at.scheme == "http" and len(ports) > 1 else ""


def http_or_grpc_url(url: str) -> str:
    """Return the URL of the live Triton at an HTTP or gRPC address, as in NVIDIA's examples."""
    try:
        with connect(url) as triton:
            triton.check_live()
            return url
    except NotTriton:
        by_grpc = f"grpc://{url.rpartition('://')[2]}"
        with connect(by_grpc) as triton:
            triton.check_live()
            return by_grpc


def ask_sample(url: str, system: str, model: str) -> str:
    """Ask `model` its system's sample and return the answer in a sentence; raise unless it is valid."""
    with connect(url) as triton:
        return client.ask_sample(triton, registry.load(system), model)
