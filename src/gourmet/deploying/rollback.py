"""Back to the version before: of a model, or of all models of a system that were deployed together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from gourmet.client.model_config import as_json, parse
from gourmet.deploying.deploy import replace_text, tidied
from gourmet.repository import CONFIG, RepositoryError, model_names, versions
from gourmet.repository.config_file import ConfigFile
from gourmet.repository.model_config import LABELS_FILE
from gourmet.runtime import manifest
from gourmet.runtime.manifest import MANIFEST
from gourmet.runtime.reading import in_short, what_it_says


def deployed_together(repository: Path, name: str) -> list[Path]:
    """What the last deployment of the system `name` made versions of; else the model of that name."""
    names, when = model_names(repository), {}
    for model in (repository / each for each in names):
        numbers = versions(model)
        about = manifest.facts(model / str(max(numbers, default=0)))
        if about.get("network", {}).get("system") == name:
            # One with a single version has nothing to go back to.
            when[model] = len(numbers) > 1, str(about.get("deployed", {}).get("at", ""))
    if not when and name not in names:
        raise RepositoryError(
            f"{repository} has no model and no models of a system {name!r}: "
            f"it has {', '.join(names) or 'none at all'}"
        )
    return [model for model, at in when.items() if at == max(when.values())] or [repository / name]


def rollback(
    models: Sequence[Path], served: Callable[[Mapping[Path, int]], None] = lambda _versions: None
) -> dict[Path, tuple[int, int]]:
    """Remove the latest version of each of `models`, with its config; its number and that of the one before.

    `served` is called with those before in place, and may still refuse them: then all is as it was.
    """
    steps = {model: tidied(model)[-2:] for model in models}
    texts = {model: _texts_of_before(model, numbers) for model, numbers in steps.items()}
    with ExitStack() as undo:
        withdrawn = []
        for model, (_, latest) in steps.items():
            folder, aside = model / str(latest), model / f".withdrawn-{latest}"
            folder.rename(aside)
            undo.callback(aside.rename, folder)
            withdrawn.append(aside)
            for name, text in texts[model].items():
                replace_text(model / name, text, undo)
        served({model: before for model, (before, _) in steps.items()})
        undo.pop_all()
        for aside in withdrawn:
            shutil.rmtree(aside, ignore_errors=True)
    return {model: (latest, before) for model, (before, latest) in steps.items()}


def _texts_of_before(model: Path, numbers: Sequence[int]) -> dict[str, str]:
    """The config and the labels of the first of two versions, whose file is the one that was deployed."""
    if len(numbers) < 2:
        raise RepositoryError(f"{model} has no version before {numbers[0] if numbers else 'the first'}")
    config, version = ConfigFile.read(model), model / str(numbers[0])
    texts, labels = config.texts(), ""
    if (version / MANIFEST).exists():
        try:
            with what_it_says():
                about = manifest.read(version)
                texts = config.of_manifest(about).texts()
                labels = "".join(f"{label}\n" for label in map(str, about.get("labels", ())))
        except ValueError as exc:
            raise RepositoryError(
                f"{version / MANIFEST} has no config or numbers that can be used ({in_short(exc)}): deploy "
                "the model again with `gourmet deploy`"
            ) from exc
    manifest.check(None, as_json(parse(texts[CONFIG])), version)
    return {**texts, **({LABELS_FILE: labels} if labels else {})}
