"""Settings from the environment, validated once; docs/settings.md lists them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticCustomError

from gourmet.errors import GourmetError, UsageError
from gourmet.systems.registry import load_all
from gourmet.triton_client.address import FORMS, Address

# For refusals, each of which takes half a second (app/web/admission.py), pages, health and metrics.
_SPARE_THREADS: Final = 100
_HOST: Final = r"^(\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9a-fA-F:]+\])$"
_ORIGIN: Final = r"^(\*|https?://[A-Za-z0-9_.-]+(:\d{1,5})?|https?://\[[0-9a-fA-F:]+\](:\d{1,5})?)$"
_KEY: Final = r"^[!-~]{16,}$"


class SettingsError(ValueError):
    """A variable of the environment has a value that cannot be used."""


@dataclass(frozen=True)
class Rate:
    """A number of photos or other requests in a number of seconds; they may all arrive at once."""

    requests: int
    seconds: int


def _address(value: str) -> str:
    try:
        address = Address.of(value)
    except UsageError:
        context = {"refused": value.rpartition("@")[2]}  # the part before the @ may be a password
        raise PydanticCustomError("address", "is not an address", context) from None
    address.tls()  # these two raise errors for unusable variables of the environment
    address.authorization()
    return value


def _rate(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([1-9]\d{0,5})/(s|min|h)", value)
    if not match:
        raise ValueError("is not a rate")
    return Rate(int(match[1]), {"s": 1, "min": 60, "h": 3600}[match[2]])


def _redis(value: str) -> str:
    if not re.fullmatch(r"rediss?://([^\s/?#@]*@)?[^\s/?#@]+(/\d*)?(\?[^\s@]*)?", value):
        context = {"refused": value.rpartition("@")[2]}  # the part before the @ may be a password
        raise PydanticCustomError("redis", "is not the address of a Redis", context)
    return value


def _folder(value: Any) -> Any:
    if "://" in str(value):
        raise ValueError("is not a folder")
    return value


def _split(value: Any) -> Any:
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


class Settings(BaseModel, frozen=True, allow_inf_nan=False):
    """The app's settings. `VARIABLES` has their environment variables; each system names that of its model.

    A field's description tells what to give instead of a refused value.
    """

    triton_url: Annotated[str, AfterValidator(_address)] = Field(
        "localhost:8000",
        description=f"Triton's HTTP address as {FORMS}; of several Tritons, their proxy's",
    )
    triton_grpc_url: Annotated[str, AfterValidator(_address)] = Field(
        "",
        description="Triton's gRPC address as host:port, such as localhost:8001, or grpcs://host:port",
    )
    triton_metrics_url: Annotated[str, StringConstraints(pattern=r"https?://\S+|")] = Field(
        "", description="the address of Triton's metrics, such as http://localhost:8002/metrics"
    )
    # The default model of each system, by the system's name.
    models: Mapping[str, str] = Field(default_factory=dict, validate_default=True)
    served_models: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    max_upload_mb: float = Field(10.0, ge=0.01, le=100)
    max_photos: int = Field(16, ge=1, le=100)
    max_call_mb: float = Field(32.0, ge=0.01, le=500)
    request_deadline_s: float = Field(10.0, ge=0.1, le=300)
    explain_deadline_s: float = Field(30.0, ge=0.1, le=300)
    generate_deadline_s: float = Field(60.0, ge=0.1, le=600)
    connect_timeout_s: float = Field(2.0, ge=0.05, le=60)
    max_at_work: int = Field(8, ge=1, le=256)
    max_waiting: int = Field(1000, ge=0, le=10_000)
    max_wait_s: float = Field(20.0, ge=0.05, le=60)
    api_keys: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=_KEY)], ...], BeforeValidator(_split)
    ] = Field(
        (),
        repr=False,
        description="at least 16 printable ASCII characters for each, without spaces or commas, "
        "such as from `openssl rand -hex 24`",
    )
    rate_limit: Annotated[Rate | None, BeforeValidator(_rate)] = Field(
        None, description="a rate such as 10/s, 60/min or 1000/h"
    )
    rate_limit_storage: Annotated[str, AfterValidator(_redis)] = Field(
        "",
        repr=False,
        description="the address of a Redis, as redis://host:6379 or rediss://host:6379, with / ? # and @ in "
        "its password as %2F %3F %23 and %40",
    )
    cors_origins: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=_ORIGIN)], ...], BeforeValidator(_split)
    ] = Field((), description="origins such as https://example.org, or *, with commas between them")
    trusted_hosts: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=_HOST)], ...], BeforeValidator(_split)
    ] = Field((), description="names such as example.org or .example.org, with commas between them")
    trusted_proxies: int = Field(0, ge=0, le=10)
    log_format: Literal["text", "json"] = "text"
    lab_page: Literal["on", "off"] = "on"
    keep_corrections: Annotated[Path | None, BeforeValidator(_folder)] = Field(
        None, description="a folder; a bucket has to be mounted"
    )
    teach_socket: Path | None = None

    @field_validator("triton_grpc_url")
    @classmethod
    def _is_grpc(cls, address: str) -> str:
        if re.search(r"https?://", address):
            raise ValueError("this is HTTP's")
        return address

    @field_validator("models")
    @classmethod
    def _every_system_has_one(cls, models: Mapping[str, str]) -> Mapping[str, str]:
        return {name: system.default_model for name, system in load_all().items()} | dict(models)

    @cached_property
    def max_upload_bytes(self) -> int:
        return int(self.max_upload_mb * 1_000_000)

    @cached_property
    def max_call_bytes(self) -> int:
        return int(self.max_call_mb * 1_000_000)

    @property
    def max_sandboxed(self) -> int:
        """Return the maximum of photos that other processes decode at a time."""
        return max(1, self.max_at_work // 2)

    @property
    def at_work(self) -> Mapping[str, int]:
        """Return the places at work by kind; a heat map counts as many photos."""
        heat_maps = max(1, self.max_at_work // 2)
        return {"photos": self.max_at_work, "texts": self.max_at_work, "heat maps": heat_maps}

    @property
    def waiting(self) -> Mapping[str, int]:
        """Return the waiting places by kind; texts and heat maps, which take long, have fewer."""
        slow = -(-self.max_waiting // 8)
        return {"photos": self.max_waiting, "texts": slow, "heat maps": slow}

    @property
    def threads(self) -> int:
        """Return the most threads that a gunicorn process needs; it starts them when it needs them."""
        return sum(self.at_work.values()) + sum(self.waiting.values()) + _SPARE_THREADS

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the settings from `env`; a missing or empty variable keeps the default."""
        values: dict[str, Any] = {
            name: text for name, variable in VARIABLES.items() if (text := _text_of(env, variable))
        }
        models: dict[str, str] = {}
        try:
            for name, system in load_all().items():
                if model := env.get(system.model_variable, "").strip():
                    models[name] = model
                    if not re.fullmatch(r"[\w.-]+", model):
                        raise SettingsError(
                            f"{system.model_variable} is {model!r}: give the name of a served model, "
                            f"such as {system.default_model}"
                        )
            return cls(models=models, **values)
        except GourmetError as exc:
            raise SettingsError(str(exc)) from exc
        except ValidationError as exc:
            raise _refused(exc) from None


VARIABLES: Final = {name: name.upper() for name in Settings.model_fields if name != "models"} | {
    "triton_url": "TRITON_SERVER_URL"
}


def _text_of(env: Mapping[str, str], variable: str) -> str:
    """Return the value of a variable, or the content of the file that VARIABLE_FILE names, as for secrets."""
    if (file := env.get(f"{variable}_FILE", "").strip()) and not env.get(variable, "").strip():
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as exc:
            raise SettingsError(f"{variable}_FILE is {file!r}, which cannot be read: {exc}") from exc
    return env.get(variable, "").strip()


def _refused(exc: ValidationError) -> SettingsError:
    first = exc.errors()[0]
    name = str(first["loc"][0])
    # The message is logged, so it must not have a key.
    refused = first.get("ctx", {}).get("refused", first["input"])
    value = f"{refused!r}" if name != "api_keys" else "one that is too short or has odd characters"
    wanted = Settings.model_fields[name].description
    return SettingsError(
        f"{VARIABLES[name]} is {value}: " + (f"give {wanted}" if wanted else first["msg"].lower())
    )
