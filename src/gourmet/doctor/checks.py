"""All checks, in the order in which one stands on the other, and a run through them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gourmet.doctor import containers, gpus, inputs, machine, models, server, software
from gourmet.doctor.findings import Check, Examined, Finding, refused
from gourmet.errors import GourmetError

CHECKS: Final[dict[str, Check]] = {
    "wheel": software.triton_wheel,
    "packages": software.packages,
    "torch": software.torch_is_whole,
    "memory": machine.shared_memory,
    "ports": machine.ports,
    "gpu": gpus.visible,
    "kernels": gpus.kernels,
    "docker": containers.docker,
    "files": machine.files,
    "models": models.configs,
    "weights": models.weights,
    "manifests": models.manifests,
    "devices": models.devices,
    "server": server.version,
    "served": server.readiness,
    "answers": server.answers,
    "web": server.web,
    "inputs": inputs.inputs,
}


def examine(subject: Examined) -> Iterator[tuple[str, Finding]]:
    """Every finding with the name of its check, as they come; a check that raises has failed."""
    for name, check in CHECKS.items():
        try:
            for finding in check(subject):
                yield name, finding
        except GourmetError as exc:
            yield name, refused(exc)
