"""The subject and the findings of the doctor's checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from gourmet.errors import GourmetError


@dataclass(frozen=True)
class Finding:
    """One line: the cause and, unless it is ok, the fix."""

    level: Literal["ok", "warn", "fail"]
    cause: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.cause}: {self.fix}" if self.fix else self.cause


@dataclass(frozen=True)
class Examined:
    """The stack that is checked."""

    repositories: tuple[Path, ...]
    host: str
    ports: Mapping[str, int]  # by the option of `gourmet up` that sets the port
    url: str
    must_run: bool  # a missing server is a fault, since the user gave its address
    environment: Mapping[str, str]


ok = partial(Finding, "ok")
warn = partial(Finding, "warn")
fail = partial(Finding, "fail")


def refused(exc: GourmetError) -> Finding:
    """Return the finding of an error, whose message is the cause, a colon and the next step."""
    cause, _, fix = str(exc).partition(": ")
    return fail(cause, fix)
