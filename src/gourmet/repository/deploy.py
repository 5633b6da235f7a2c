"""Deploy versions of a served model through the gate, roll back, and change a deployed threshold."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.progress import ReportProgress
from gourmet.repository import CONFIG, RepositoryError, model_names, read_config, repository_text, versions
from gourmet.repository.config_file import LABELS_FILE, ConfigFile
from gourmet.repository.gate import Check, Comparison, Deployment, Target, serving, table, weights_of
from gourmet.served import manifest
from gourmet.served.files import write_whole
from gourmet.served.manifest import MANIFEST, sha256
from gourmet.served.reading import in_short, malformed_as_value_error
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.triton_client.model_config import as_json, as_pbtxt, parse

_BUILT_BY: Final = ("torch", "torchvision", "onnx", "onnxruntime", "numpy")
# Versions that are built, replaced or withdrawn, and texts that are written aside.
_LEFT: Final = (".next.*", ".old[.-]*", ".withdrawn-*", ".*.part")
# Fields of a config that describe the network. They may change with each version.
_OF_VERSION: Final = ("max_batch_size", "input", "output")
_YOURS: Final = "# Written once, with the first version; from then on it is yours to change.\n"


def deploy(
    deployment: Deployment,
    form: str,
    repository: Path,
    number: int | None = None,
    served: Callable[[Path], None] = lambda _version: None,
    *,
    force: bool = False,
    show: Callable[[Comparison], None] = lambda _comparison: None,
    tick: ReportProgress = lambda share, words="": None,
) -> tuple[Path, Sequence[Check]]:
    """Put a model of the format `form` into `repository`, or raise and leave everything as it was.

    Returns the new version's folder and the checks that it passed. `served` is called with it in place, and
    may still refuse it. `show` is called with how it compares with what is served: if it is worse, it is
    refused without `force`.
    """
    target = deployment.targets[form]
    model = repository / target.model
    comparison = _compared(target, model, tick)
    if comparison:
        show(comparison)
        if comparison.lost and not force:
            raise GourmetError(
                f"{model.name} is not deployed, version {comparison.version} goes on serving. The candidate "
                f"loses more than the margin: {comparison.losses()}. --force deploys it all the same"
            )
    with contextlib.ExitStack() as undo:
        new = not model.exists()
        if new and target.config:
            _make_folder(model, undo)
        # A folder that cannot be written is refused before the work.
        config = _config(deployment, target, model)
        files = config.texts()
        if target.labels and (new or target.replaces):
            files[LABELS_FILE] = "".join(f"{label}\n" for label in target.labels)
        for name, labels in target.label_files.items():
            if not (model / name).exists():
                files[name] = "".join(f"{label}\n" for label in labels)

        def accepted(version: Path) -> None:
            served(version)
            undo.pop_all()

        made_here = [other.file for other in (target, *target.also)]
        with staged(model, made_here, number, alone=target.replaces, served=accepted) as (aside, final):
            form_facts, checks = _made(target, aside)
            also = {}
            for other in target.also:
                about, more = _made(other, aside)
                if failed := [check.what for check in more if not check.passed]:
                    # It is one of several forms of the network, and the version is whole without it.
                    (aside / other.file).unlink()
                    more = [Check("left out", ", ".join(failed), "", True)]
                else:
                    also[other.file] = about
                checks += [replace(check, what=f"{other.file}: {check.what}") for check in more]
            if not all(check.passed for check in checks):
                raise GourmetError(
                    f"{target.model} is not deployed; what is served stays as it is\n{table(checks)}"
                )
            facts = {
                "model": target.model,
                "file": target.file,
                **form_facts,
                **({"also": also} if also else {}),
                "built_by": {
                    "python": platform.python_version(),
                    **{name: version(name) for name in _BUILT_BY if find_spec(name)},
                },
                "deployed": {"at": deployment.at, "by": " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])},
                **deployment.facts,
                "calibration": dict(deployment.calibration),
                "dims": {name: list(dims) for name, dims in target.dims.items()},
                "config": config.generated,
                "labels": list(target.labels),
                "gate": [vars(check) for check in checks],
                **({"compared": comparison.as_dict()} if comparison else {}),
            }
            (aside / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            for name, text in files.items():
                _replace_text(model / name, text, undo)
    return final, checks


def _compared(target: Target, model: Path, tick: ReportProgress) -> Comparison | None:
    """Compare the candidate for `model` with the version that serves; return None if none serves."""
    version = serving(model) if model.is_dir() else None
    if not version:
        return None
    if not target.compare:
        return Comparison(
            model.name, version.name, note="accuracy was not compared: this format has no measure"
        )
    return target.compare(version, tick)


def _made(target: Target, folder: Path) -> tuple[dict[str, Any], list[Check]]:
    """Build a file into `folder`; return its facts for the manifest, and the checks of the gate."""
    file = folder / target.file
    form_facts = target.build(file)
    checks = list(target.verify(file))
    file.chmod(0o644)
    return {"sha256": sha256(file), "bytes": file.stat().st_size, **form_facts}, checks


def _replace_text(path: Path, text: str, undo: contextlib.ExitStack) -> None:
    """Write a file; `undo` restores the old text, or removes the new file. A link stays a link."""
    path = path.resolve()
    if path.exists():
        undo.callback(write_whole, path, repository_text(path))
    else:
        undo.callback(path.unlink, missing_ok=True)
    write_whole(path, text)


def _config(deployment: Deployment, target: Target, model: Path) -> ConfigFile:
    """Return the model's config.pbtxt as it will be with the new version."""
    exists = (model / CONFIG).exists()
    made = {name: value for name, value in (target.config or {}).items() if name in _OF_VERSION}
    if target.config and target.replaces:
        config = ConfigFile(model, ConfigFile.read(model).by_hand if exists else "", target.config)
    elif target.config and not exists:
        yours = {name: value for name, value in target.config.items() if name not in _OF_VERSION}
        config = ConfigFile(model, _YOURS + as_pbtxt(yours), made)
    else:
        config = ConfigFile.read(model)
        if made.keys() & config.generated.keys():
            config = replace(config, generated={**config.generated, **made})
    return config.with_version(deployment.calibration, target.dims)


def _make_folder(model: Path, undo: contextlib.ExitStack) -> None:
    for folder in reversed([model, *(parent for parent in model.parents if not parent.exists())]):
        folder.mkdir()
        undo.callback(shutil.rmtree, folder, ignore_errors=True)


@contextlib.contextmanager
def staged(
    model: Path,
    exported: Sequence[str],
    number: int | None = None,
    *,
    alone: bool = False,
    served: Callable[[Path], None] = lambda _version: None,
) -> Iterator[tuple[Path, Path]]:
    """Yield a folder to build a version of `model` in, and the folder that it becomes if nothing fails.

    Without a `number` it is the version after the latest. It is built in the model's own folder, so
    that it takes its place by a rename; Triton looks only at folders that are numbers. Unless it is to
    stand `alone`, all files of the latest version but the `exported` ones are taken over: a Python model's
    code belongs to no export. Where `served` raises, the version that it took the place of is back.
    """
    before = tidied(model)
    final = model / str(number or (before[-1] + 1 if before else 1))
    aside, replaced = model / f".next.{os.getpid()}", model / f".old-{final.name}"
    try:
        aside.mkdir()
        if before and not alone:
            skipped = shutil.ignore_patterns(*exported, MANIFEST, "__pycache__")
            shutil.copytree(model / str(before[-1]), aside, ignore=skipped, dirs_exist_ok=True)
        yield aside, final
        try:
            if final.exists():
                final.rename(replaced)
            aside.rename(final)
            served(final)
        except BaseException:
            if not aside.exists():
                final.rename(aside)
            if replaced.exists():
                replaced.rename(final)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def tidied(model: Path) -> tuple[int, ...]:
    """Remove what killed verbs left in a model's folder, and return its versions."""
    for replaced in model.glob(".old-*"):
        if not (final := model / replaced.name.removeprefix(".old-")).exists():
            replaced.rename(final)
    for left in (path for name in _LEFT for path in model.glob(name)):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    return versions(model)


def load(url: str, model: str, sent: Path | None = None) -> bool:
    """Have Triton serve what is on disk; it answers from the old version until the new one is ready.

    The model's folder is `sent` where that Triton does not see it: the latest version. False where it polls
    its repository, and loads the model by itself.
    """
    config, files = None, {}
    if sent:
        config = as_json(read_config(sent))
        named = config.get("version_policy", {}).get("specific", {}).get("versions")
        of_versions = [sent / str(number) for number in named or versions(sent)[-1:]]
        paths = [*(path for version in of_versions for path in version.rglob("*")), sent / LABELS_FILE]
        files = {str(path.relative_to(sent)): path.read_bytes() for path in paths if path.is_file()}
    with connect(url, LOADS_WITHIN_S) as triton:
        return triton.load(model, config, files)


def deployed_together(repository: Path, name: str) -> list[Path]:
    """Return the models that the last deployment of the system `name` made; else the model of that name."""
    names, when = model_names(repository), {}
    for model in (repository / model_name for model_name in names):
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
    """Remove the latest version of each of `models`; return its number and the number of the one before.

    `served` is called with those before in place, and may still refuse them: then all is as it was.
    """
    steps = {model: tidied(model)[-2:] for model in models}
    texts = {model: _texts_of_before(model, numbers) for model, numbers in steps.items()}
    with contextlib.ExitStack() as undo:
        withdrawn = []
        for model, (_, latest) in steps.items():
            folder, aside = model / str(latest), model / f".withdrawn-{latest}"
            folder.rename(aside)
            undo.callback(aside.rename, folder)
            withdrawn.append(aside)
            for name, text in texts[model].items():
                _replace_text(model / name, text, undo)
        served({model: before for model, (before, _) in steps.items()})
        undo.pop_all()
        for aside in withdrawn:
            shutil.rmtree(aside, ignore_errors=True)
    return {model: (latest, before) for model, (before, latest) in steps.items()}


def _texts_of_before(model: Path, numbers: Sequence[int]) -> dict[str, str]:
    """Return the config and the labels of the older of two versions; raise if its file is not intact."""
    if len(numbers) < 2:
        raise RepositoryError(f"{model} has no version before {numbers[0] if numbers else 'the first'}")
    config, version = ConfigFile.read(model), model / str(numbers[0])
    texts, labels = config.texts(), ""
    if (version / MANIFEST).exists():
        try:
            with malformed_as_value_error():
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


def of_same_weights(model: Path) -> list[Path]:
    """Return the models of the repository whose newest version has the same weights as this one's."""
    if not (weights := weights_of(newest(model))):
        raise RepositoryError(f"{model} has no version that says what weights it is of: deploy it first")
    beside = [model.parent / name for name in model_names(model.parent)]
    return [path for path in beside if weights_of(newest(path)) == weights]


def newest(model: Path) -> Path:
    return model / str(max(versions(model), default=0))


def recalibrate(
    models: Sequence[Path],
    calibration: Mapping[str, float | str],
    facts: Mapping[str, Any],
    served: Callable[[Path], None] = lambda _model: None,
) -> None:
    """Give the newest versions of `models` these numbers, or raise and leave everything as it was.

    `served` is called with each in place, and may still refuse it.
    """
    with contextlib.ExitStack() as undo:
        for model in models:
            version = newest(model)
            before, config = manifest.read(version), ConfigFile.read(model)
            try:
                with malformed_as_value_error():
                    config = config.with_version(calibration, before.get("dims", {}))
            except ValueError as exc:
                raise RepositoryError(
                    f"{version / MANIFEST} has no shapes that can be used ({in_short(exc)}): deploy the "
                    "model again with `gourmet deploy`"
                ) from exc
            about = {
                **before,
                "calibration": dict(calibration),
                **facts,
                "config": config.generated,
            }
            _replace_text(version / MANIFEST, json.dumps(about, indent=2) + "\n", undo)
            for name, text in config.texts().items():
                _replace_text(model / name, text, undo)
            served(model)
        undo.pop_all()
