"""What can be set from outside, as a value that was checked once. docs/settings.md is the list for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from gourmet.errors import GourmetError
from gourmet.systems.registry import load_all

_MIN_KEY_CHARACTERS: Final = 16
# For refusals, pages, health and metrics, whatever else there is to do.
_SPARE_THREADS: Final = 8
_HOST: Final = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9a-fA-F:]+\]")
_ORIGIN: Final = re.compile(r"\*|https?://[A-Za-z0-9_.-]+(:\d{1,5})?|https?://\[[0-9a-fA-F:]+\](:\d{1,5})?")

T = TypeVar("T")


class SettingsError(ValueError):
    """A variable of the environment has a value that cannot be used."""


@dataclass(frozen=True)
class Rate:
    """So many photos or other requests in so many seconds; all of them may come at once."""

    requests: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Rate:
        match = re.fullmatch(r"(\d{1,6})/(s|min|h)", text)
        if not match or int(match[1]) == 0:
            raise ValueError("is not a valid rate: write one such as 10/s, 60/min or 1000/h")
        return cls(int(match[1]), {"s": 1, "min": 60, "h": 3600}[match[2]])


Check = Callable[[str, Any], None]


def _setting(default: T, reads: Callable[[str], object] = str, check: Check | None = None) -> T:
    """A field that `reads` makes of a variable's text, and whose value `check` may refuse."""
    made: T = field(default=default, metadata={"reads": reads, "check": check}, repr=check is not _check_keys)
    return made


def _number(default: T, lowest: float, highest: float) -> T:
    def check(variable: str, value: float) -> None:
        if not lowest <= value <= highest:
            raise SettingsError(f"{variable} is {value:g}: allowed is {lowest:g} to {highest:g}")

    return _setting(default, type(default), check)


def _one_of(default: str, *allowed: str) -> str:
    def check(variable: str, value: str) -> None:
        if value not in allowed:
            raise SettingsError(f"{variable} is {value!r}: give {' or '.join(allowed)}")

    return _setting(default, check=check)


def _words(pattern: re.Pattern[str], wanted: str) -> tuple[str, ...]:
    def check(variable: str, values: tuple[str, ...]) -> None:
        for value in values:
            if not pattern.fullmatch(value):
                raise SettingsError(f"{variable} has {value!r}: give {wanted}, with commas between them")

    return _setting((), _split, check)


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _check_url(variable: str, value: str) -> None:
    host, _, port = value.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host) or not is_port:
        raise SettingsError(
            f"{variable} is {value!r}: give Triton's HTTP address as host:port, "
            "such as localhost:8000, without http://"
        )


def _check_keys(variable: str, keys: tuple[str, ...]) -> None:
    # The key itself stays out of the message, which ends in a log.
    for place, key in enumerate(keys, 1):
        if len(key) < _MIN_KEY_CHARACTERS or not re.fullmatch(r"[!-~]+", key):
            raise SettingsError(
                f"{variable}: key {place} of {len(keys)} is too short or has odd characters: "
                f"use at least {_MIN_KEY_CHARACTERS} printable ASCII ones without spaces or commas, "
                "such as from `openssl rand -hex 24`"
            )


@dataclass(frozen=True)
class Settings:
    """`VARIABLES` has the environment's name of each but `models`, whose names the systems say."""

    triton_url: str = _setting("localhost:8000", check=_check_url)
    # By the system's name, the model that answers where no other is asked for; every system has one.
    models: Mapping[str, str] = field(default_factory=dict)
    max_upload_mb: float = _number(10.0, 0.01, 100.0)
    max_photos: int = _number(16, 1, 100)
    max_call_mb: float = _number(32.0, 0.01, 500.0)
    upload_deadline_s: float = _number(30.0, 0.1, 600.0)
    request_deadline_s: float = _number(10.0, 0.1, 300.0)
    explain_deadline_s: float = _number(30.0, 0.1, 300.0)
    generate_deadline_s: float = _number(60.0, 0.1, 600.0)
    connect_timeout_s: float = _number(2.0, 0.05, 60.0)
    max_at_work: int = _number(8, 1, 256)
    max_waiting: int = _number(32, 0, 1024)
    max_wait_s: float = _number(10.0, 0.05, 60.0)
    max_uploads: int = _number(32, 1, 1024)
    api_keys: tuple[str, ...] = _setting((), _split, _check_keys)
    rate_limit: Rate | None = field(default=None, metadata={"reads": Rate.parse})
    cors_origins: tuple[str, ...] = _words(_ORIGIN, "origins such as https://example.org, or *")
    trusted_hosts: tuple[str, ...] = _words(_HOST, "names such as example.org or .example.org")
    trusted_proxies: int = _number(0, 0, 10)
    log_format: str = _one_of("text", "text", "json")
    lab_page: str = _one_of("on", "on", "off")
    lab_reports: Path | None = field(default=None, metadata={"reads": Path})

    def __post_init__(self) -> None:
        systems = _systems()
        defaults = {name: system.default_model for name, system in systems.items()}
        object.__setattr__(self, "models", defaults | dict(self.models))
        for name, model in self.models.items():
            if not re.fullmatch(r"[\w.-]+", model):
                raise SettingsError(
                    f"{systems[name].model_variable} is {model!r}: give the name of a served model, "
                    f"such as {systems[name].default_model}"
                )
        for each in _READ:
            if check := each.metadata.get("check"):
                check(VARIABLES[each.name], getattr(self, each.name))

    @property
    def max_upload_bytes(self) -> int:
        return int(self.max_upload_mb * 1_000_000)

    @property
    def max_call_bytes(self) -> int:
        return int(self.max_call_mb * 1_000_000)

    @property
    def threads(self) -> int:
        """What a process of gunicorn needs, so that one is always free; see app/admission/queue.py."""
        return self.max_uploads + self.max_at_work + self.max_waiting + _SPARE_THREADS

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """The settings in `env`; a variable that is missing or empty leaves the default."""
        given: dict[str, Any] = {}
        for each in _READ:
            if text := env.get(VARIABLES[each.name], "").strip():
                given[each.name] = _read(VARIABLES[each.name], each.metadata["reads"], text)
        chosen = {name: env.get(system.model_variable, "").strip() for name, system in _systems().items()}
        return cls(models={name: model for name, model in chosen.items() if model}, **given)


_READ: Final = tuple(each for each in fields(Settings) if each.metadata)
VARIABLES: Final = {each.name: each.name.upper() for each in _READ} | {"triton_url": "TRITON_SERVER_URL"}


def _systems() -> Mapping[str, Any]:
    try:
        return load_all()
    except GourmetError as exc:
        raise SettingsError(str(exc)) from exc


def _read(variable: str, reads: Callable[[str], object], text: str) -> object:
    try:
        return reads(text)
    except ValueError as exc:
        kinds: dict[object, str] = {float: "which is not a number", int: "which is not a whole number"}
        raise SettingsError(f"{variable} is {text!r}, {kinds.get(reads, f'which {exc}')}") from None
