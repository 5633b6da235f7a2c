"""Serve the newest version that loads, if the newest version of a model does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gourmet.client.model_config import as_json, parse
from gourmet.client.triton import Triton
from gourmet.contracts import INSTEAD_OF
from gourmet.errors import GourmetError
from gourmet.repository import versions
from gourmet.repository.config_file import ConfigFile
from gourmet.runtime import manifest


def load_older_versions(triton: Triton, repositories: Iterable[Path], say: Callable[[str], None]) -> None:
    """Load an older version of each model that failed to load; report failures and replacements to `say`."""
    folders = {model.name: model for folder in repositories for model in folder.iterdir() if model.is_dir()}
    for name, entry in sorted(triton.index().items()):
        if entry.get("state") != "UNAVAILABLE" or entry.get("reason") == "unloaded":
            continue
        say(f"the model {name!r} did not load, the others serve: {entry.get('reason')}")
        served = _load_older(triton, folders[name]) if name in folders else None
        if served:
            say(f"version {served} of {name!r} serves instead; to keep it, run `gourmet rollback {name}`")


def _load_older(triton: Triton, model: Path) -> int | None:
    newest, *older = reversed(versions(model)) or [0]
    for number in older:
        try:
            facts = manifest.facts(model / str(number))
            config = as_json(parse(ConfigFile.read(model).of_manifest(facts).text()))
            config["version_policy"] = {"specific": {"versions": [number]}}
            config.setdefault("parameters", {})[INSTEAD_OF] = {"string_value": str(newest)}
            triton.load(model.name, config)
        except (GourmetError, ValueError):
            continue  # this version does not load either
        return number
    return None
