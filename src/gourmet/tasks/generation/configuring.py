"""A training's configuration, changed by name on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar, cast

from gourmet.errors import UsageError
from gourmet.tasks.generation.packages import needed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with some of it as `name=value`; raises UsageError."""
    with needed():
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError
    try:
        merged = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.from_dotlist(list(overrides)))
        return cast(Config, OmegaConf.to_object(merged))
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError) as exc:
        known = ", ".join(f"{name}={value}" for name, value in asdict(config).items())
        raise UsageError(f"{next(iter(str(exc).splitlines()))}; there are {known}") from exc
