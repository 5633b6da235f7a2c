"""What can be set from outside, as a value that was checked once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gourmet.systems.food11 import contract


class SettingsError(ValueError):
    """A variable of the environment has a value that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """The environment variable of each setting stands in `from_env`."""

    triton_url: str = "localhost:8000"
    food_model: str = contract.DEFAULT_MODEL
    max_upload_mb: float = 10.0
    max_photos: int = 16
    max_call_mb: float = 32.0
    upload_deadline_s: float = 30.0
    request_deadline_s: float = 10.0
    connect_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        host, _, port = self.triton_url.rpartition(":")
        if not re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host) or not _is_port(port):
            raise SettingsError(
                f"TRITON_SERVER_URL is {self.triton_url!r}: give Triton's HTTP address as host:port, "
                "such as localhost:8000, without http://"
            )
        if not re.fullmatch(r"[\w.-]+", self.food_model):
            raise SettingsError(
                f"{contract.MODEL_ENV} is {self.food_model!r}: give the name of a served model, "
                f"such as {contract.DEFAULT_MODEL}"
            )
        for name, lowest, highest in _RANGES:
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise SettingsError(f"{name.upper()} is {value:g}: allowed is {lowest:g} to {highest:g}")

    @property
    def max_upload_bytes(self) -> int:
        return int(self.max_upload_mb * 1_000_000)

    @property
    def max_call_bytes(self) -> int:
        return int(self.max_call_mb * 1_000_000)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """The settings in `env`; a variable that is missing or empty leaves the default."""
        return cls(
            triton_url=env.get("TRITON_SERVER_URL", "").strip() or cls.triton_url,
            food_model=env.get(contract.MODEL_ENV, "").strip() or cls.food_model,
            max_upload_mb=_number(env, "MAX_UPLOAD_MB", cls.max_upload_mb),
            max_photos=_whole(env, "MAX_PHOTOS", cls.max_photos),
            max_call_mb=_number(env, "MAX_CALL_MB", cls.max_call_mb),
            upload_deadline_s=_number(env, "UPLOAD_DEADLINE_S", cls.upload_deadline_s),
            request_deadline_s=_number(env, "REQUEST_DEADLINE_S", cls.request_deadline_s),
            connect_timeout_s=_number(env, "CONNECT_TIMEOUT_S", cls.connect_timeout_s),
        )


_RANGES = (
    ("max_upload_mb", 0.01, 100.0),
    ("max_photos", 1, 100),
    ("max_call_mb", 0.01, 500.0),
    ("upload_deadline_s", 0.1, 600.0),
    ("request_deadline_s", 0.1, 300.0),
    ("connect_timeout_s", 0.05, 60.0),
)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _number(env: Mapping[str, str], variable: str, default: float) -> float:
    text = env.get(variable, "").strip()
    try:
        return float(text) if text else default
    except ValueError:
        raise SettingsError(f"{variable} is {text!r}, which is no number") from None


def _whole(env: Mapping[str, str], variable: str, default: int) -> int:
    text = env.get(variable, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise SettingsError(f"{variable} is {text!r}, which is no whole number") from None
