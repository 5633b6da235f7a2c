"""What a check looks at and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from gourmet.errors import GourmetError


@dataclass(frozen=True)
class Finding:
    """One line: what was found and, unless all is well, what to do about it."""

    level: Literal["ok", "warn", "fail"]
    cause: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.cause}: {self.fix}" if self.fix else self.cause


@dataclass(frozen=True)
class Examined:
    """What is looked at; the defaults are what `gourmet up` starts."""

    repositories: tuple[Path, ...]
    host: str
    # Each by the option of `gourmet up` that sets it.
    ports: Mapping[str, int]
    url: str
    # Whether the address was given, so that finding no server there is a fault.
    must_run: bool
    environment: Mapping[str, str]


ok = partial(Finding, "ok")
warn = partial(Finding, "warn")
fail = partial(Finding, "fail")


def refused(exc: GourmetError) -> Finding:
    """The finding that an error of this house is: its sentence says the cause, a colon, the next step."""
    cause, _, fix = str(exc).partition(": ")
    return fail(cause, fix)
