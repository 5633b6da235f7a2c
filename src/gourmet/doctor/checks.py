"""All checks, in the order in which one stands on the other, and a run through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gourmet.doctor import gpus, machine, stack
from gourmet.doctor.findings import Examined, Finding, refused
from gourmet.errors import GourmetError

CHECKS: Final[dict[str, Callable[[Examined], Iterator[Finding]]]] = {
    "wheel": machine.triton_wheel,
    "packages": machine.packages,
    "memory": machine.shared_memory,
    "ports": machine.ports,
    "gpu": gpus.gpus,
    "models": stack.configs,
    "manifests": stack.manifests,
    "server": stack.server,
    "served": stack.served,
    "answers": stack.answers,
    "web": stack.web,
    "inputs": stack.inputs,
}


def examine(subject: Examined) -> Iterator[tuple[str, Finding]]:
    """Every finding with the name of its check, as they come; a check that raises has failed."""
    for name, check in CHECKS.items():
        try:
            for finding in check(subject):
                yield name, finding
        except GourmetError as exc:
            yield name, refused(exc)
