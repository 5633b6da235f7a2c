"""What can be set from outside, as a value that was checked once. docs/settings.md is the list for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gourmet.systems.digits import contract as digits
from gourmet.systems.food11 import contract as food11

_MIN_KEY_CHARACTERS: Final = 16
# For refusals, pages, health and metrics, whatever else there is to do.
_SPARE_THREADS: Final = 8
_LOG_FORMATS: Final = ("text", "json")
_SWITCH: Final = ("on", "off")
_HOST: Final = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9a-fA-F:]+\]")
_ORIGIN: Final = re.compile(r"\*|https?://[A-Za-z0-9_.-]+(:\d{1,5})?|https?://\[[0-9a-fA-F:]+\](:\d{1,5})?")


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
            raise ValueError("is no rate: write one such as 10/s, 60/min or 1000/h")
        return cls(int(match[1]), {"s": 1, "min": 60, "h": 3600}[match[2]])


@dataclass(frozen=True)
class Settings:
    """`VARIABLES` has the environment's name of each."""

    triton_url: str = "localhost:8000"
    food_model: str = food11.DEFAULT_MODEL
    digits_model: str = digits.DEFAULT_MODEL
    max_upload_mb: float = 10.0
    max_photos: int = 16
    max_call_mb: float = 32.0
    upload_deadline_s: float = 30.0
    request_deadline_s: float = 10.0
    explain_deadline_s: float = 30.0
    connect_timeout_s: float = 2.0
    max_at_work: int = 8
    max_waiting: int = 32
    max_wait_s: float = 10.0
    max_uploads: int = 32
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    rate_limit: Rate | None = None
    cors_origins: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    trusted_proxies: int = 0
    log_format: str = "text"
    lab_page: str = "on"
    lab_reports: Path | None = None

    def __post_init__(self) -> None:
        host, _, port = self.triton_url.rpartition(":")
        if not re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host) or not _is_port(port):
            raise SettingsError(
                f"TRITON_SERVER_URL is {self.triton_url!r}: give Triton's HTTP address as host:port, "
                "such as localhost:8000, without http://"
            )
        for system, model in ((food11, self.food_model), (digits, self.digits_model)):
            if not re.fullmatch(r"[\w.-]+", model):
                raise SettingsError(
                    f"{system.MODEL_ENV} is {model!r}: give the name of a served model, "
                    f"such as {system.DEFAULT_MODEL}"
                )
        for variable, value, allowed in (
            ("LOG_FORMAT", self.log_format, _LOG_FORMATS),
            ("LAB_PAGE", self.lab_page, _SWITCH),
        ):
            if value not in allowed:
                raise SettingsError(f"{variable} is {value!r}: give {' or '.join(allowed)}")
        for name, lowest, highest in _RANGES:
            number = getattr(self, name)
            if not lowest <= number <= highest:
                raise SettingsError(f"{name.upper()} is {number:g}: allowed is {lowest:g} to {highest:g}")
        # The key itself stays out of the message, which ends in a log.
        for place, key in enumerate(self.api_keys, 1):
            if len(key) < _MIN_KEY_CHARACTERS or not re.fullmatch(r"[!-~]+", key):
                raise SettingsError(
                    f"API_KEYS: key {place} of {len(self.api_keys)} is too short or has odd characters: "
                    f"use at least {_MIN_KEY_CHARACTERS} printable ASCII ones without spaces or commas, "
                    "such as from `openssl rand -hex 24`"
                )
        _check_each("CORS_ORIGINS", self.cors_origins, _ORIGIN, "origins such as https://example.org, or *")
        _check_each("TRUSTED_HOSTS", self.trusted_hosts, _HOST, "names such as example.org or .example.org")

    @property
    def max_upload_bytes(self) -> int:
        return int(self.max_upload_mb * 1_000_000)

    @property
    def max_call_bytes(self) -> int:
        return int(self.max_call_mb * 1_000_000)

    @property
    def threads(self) -> int:
        """What a process of gunicorn needs, so that one is always free; see app/limits.py."""
        return self.max_uploads + self.max_at_work + self.max_waiting + _SPARE_THREADS

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """The settings in `env`; a variable that is missing or empty leaves the default."""
        given: dict[str, Any] = {}
        for name, (variable, reads) in VARIABLES.items():
            if text := env.get(variable, "").strip():
                given[name] = _read(variable, reads, text)
        return cls(**given)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


# Each setting's variable in the environment, and what reads its text.
VARIABLES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "triton_url": ("TRITON_SERVER_URL", str),
    "food_model": (food11.MODEL_ENV, str),
    "digits_model": (digits.MODEL_ENV, str),
    "max_upload_mb": ("MAX_UPLOAD_MB", float),
    "max_photos": ("MAX_PHOTOS", int),
    "max_call_mb": ("MAX_CALL_MB", float),
    "upload_deadline_s": ("UPLOAD_DEADLINE_S", float),
    "request_deadline_s": ("REQUEST_DEADLINE_S", float),
    "explain_deadline_s": ("EXPLAIN_DEADLINE_S", float),
    "connect_timeout_s": ("CONNECT_TIMEOUT_S", float),
    "max_at_work": ("MAX_AT_WORK", int),
    "max_waiting": ("MAX_WAITING", int),
    "max_wait_s": ("MAX_WAIT_S", float),
    "max_uploads": ("MAX_UPLOADS", int),
    "api_keys": ("API_KEYS", _words),
    "rate_limit": ("RATE_LIMIT", Rate.parse),
    "cors_origins": ("CORS_ORIGINS", _words),
    "trusted_hosts": ("TRUSTED_HOSTS", _words),
    "trusted_proxies": ("TRUSTED_PROXIES", int),
    "log_format": ("LOG_FORMAT", str),
    "lab_page": ("LAB_PAGE", str),
    "lab_reports": ("LAB_REPORTS", Path),
}

_RANGES: Final = (
    ("max_upload_mb", 0.01, 100.0),
    ("max_photos", 1, 100),
    ("max_call_mb", 0.01, 500.0),
    ("upload_deadline_s", 0.1, 600.0),
    ("request_deadline_s", 0.1, 300.0),
    ("explain_deadline_s", 0.1, 300.0),
    ("connect_timeout_s", 0.05, 60.0),
    ("max_at_work", 1, 256),
    ("max_waiting", 0, 1024),
    ("max_wait_s", 0.05, 60.0),
    ("max_uploads", 1, 1024),
    ("trusted_proxies", 0, 10),
)


def _read(variable: str, reads: Callable[[str], object], text: str) -> object:
    try:
        return reads(text)
    except ValueError as exc:
        kinds: dict[object, str] = {float: "which is no number", int: "which is no whole number"}
        raise SettingsError(f"{variable} is {text!r}, {kinds.get(reads, f'which {exc}')}") from None


def _check_each(variable: str, values: tuple[str, ...], pattern: re.Pattern[str], wanted: str) -> None:
    for value in values:
        if not pattern.fullmatch(value):
            raise SettingsError(f"{variable} has {value!r}: give {wanted}, with commas between them")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536
