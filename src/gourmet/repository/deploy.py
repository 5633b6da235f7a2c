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
from gourmet.repository.config_file import LABELS_FILE, ConfigFile
from gourmet.repository.gate import Check, Comparison, Deployment, ModelFile, Target, table
from gourmet.repository.lock import all_or_nothing, tidied
from gourmet.repository.models import CONFIG, RepositoryError
from gourmet.repository.versions import (
    WITHDRAWN,
    newest_intact_version,
    newest_version,
    version_numbers,
    withdrawn_number,
    withdrawn_versions,
)
from gourmet.served import manifest
from gourmet.served.manifest import MANIFEST, sha256
from gourmet.served.reading import error_summary, malformed_as_value_error
from gourmet.triton_client.model_config import as_json, as_pbtxt, parse

_BUILT_BY: Final = ("torch", "torchvision", "onnx", "onnxruntime", "numpy")
# Fields of a config that describe the network. They may change with each version.
_OF_VERSION: Final = ("max_batch_size", "input", "output")
_YOURS: Final = "# Written once, with the first version; from then on it is yours to change.\n"


def deploy(
    deployment: Deployment,
    form: str,
    repository: Path,
    number: int | None = None,
    serve: Callable[[Path], None] = lambda _version: None,
    *,
    force: bool = False,
    show: Callable[[Comparison], None] = lambda _comparison: None,
    tick: ReportProgress = lambda share, words="": None,
) -> tuple[Path, Sequence[Check]]:
    """Put a model of the format `form` into `repository`, or raise and leave everything as it was.

    Returns the new version's folder and the checks that it passed. `serve` is called with it in place, and
    may still refuse it. `show` gets the comparison with the served version. A worse candidate needs `force`.
    """
    target = deployment.targets[form]
    model = repository / target.model
    tidied(model)
    try:
        comparison = _compared(target, model, tick)
    except Exception as exc:  # a runtime's own too: what was not measured may be worse
        reason = (
            error_summary(exc)
            if isinstance(exc, GourmetError)
            else f"{type(exc).__name__}: {error_summary(exc)}"
        )
        if not force:
            raise GourmetError(
                f"{model.name} is not deployed, since comparing it with what is served failed ({reason}). "
                "--force deploys it all the same"
            ) from exc
        comparison = Comparison(model.name, "", note=f"accuracy was not compared: {reason}")
    if comparison:
        show(comparison)
        if comparison.lost and not force:
            raise GourmetError(
                f"{model.name} is not deployed, version {comparison.version} goes on serving. The candidate "
                f"loses more than the margin: {comparison.losses()}. --force deploys it all the same"
            )
    with contextlib.ExitStack() as made:
        new = not model.exists()
        if new and target.config:
            _make_folder(model, made)
        # A folder that cannot be written is refused before the work.
        config = _config(deployment, target, model)
        files = config.texts()
        if target.labels and (new or target.replaces):
            files[LABELS_FILE] = "".join(f"{label}\n" for label in target.labels)

        main, made_here = target.files[0], [file.name for file in target.files]
        how: dict[str, Any] = {"alone": target.replaces, "texts": files, "serve": serve}
        with staged(model, made_here, number, **how) as (aside, final):
            about, checks = dict[str, dict[str, Any]](), list[Check]()
            for file in target.files:
                about[file.name], of_file = _written(file, aside)
                failed = [check.what for check in of_file if not check.passed]
                if failed and file.is_optional:
                    (aside / file.name).unlink()
                    del about[file.name]
                    of_file = [Check("left out", ", ".join(failed), "", True)]
                prefix = "" if file is main else f"{file.name}: "
                checks += [replace(check, what=prefix + check.what) for check in of_file]
            if not all(check.passed for check in checks):
                raise GourmetError(
                    f"{target.model} is not deployed; what is served stays as it is\n{table(checks)}"
                )
            facts = {
                "format": manifest.FORMAT,
                "release": version("gourmetgram-triton"),
                "model": target.model,
                "file": main.name,
                **about.pop(main.name),
                **({"also": about} if about else {}),
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
        made.pop_all()
    return final, checks


def _compared(target: Target, model: Path, tick: ReportProgress) -> Comparison | None:
    """Compare the candidate for `model` with the version that serves; return None if none serves."""
    version = newest_intact_version(model) if model.is_dir() else None
    if not version:
        return None
    if not target.compare:
        return Comparison(
            model.name, version.name, note="accuracy was not compared: this format has no measure"
        )
    return target.compare(version, tick)


def _written(file: ModelFile, folder: Path) -> tuple[dict[str, Any], list[Check]]:
    """Write a file into `folder`; return its facts for the manifest, and the checks of the gate."""
    path = folder / file.name
    facts = file.write(path)
    checks = list(file.check(path))
    path.chmod(0o644)
    return {"sha256": sha256(path), "bytes": path.stat().st_size, **facts}, checks


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


def _make_folder(model: Path, made: contextlib.ExitStack) -> None:
    for folder in reversed([model, *(parent for parent in model.parents if not parent.exists())]):
        folder.mkdir()
        made.callback(shutil.rmtree, folder, ignore_errors=True)


@contextlib.contextmanager
def staged(
    model: Path,
    exported: Sequence[str],
    number: int | None = None,
    *,
    alone: bool = False,
    texts: Mapping[str, str] | None = None,
    serve: Callable[[Path], None] = lambda _version: None,
) -> Iterator[tuple[Path, Path]]:
    """Yield a folder to build a version of `model` in, and the folder that it becomes if nothing fails.

    Without a `number` it is the version after the latest. It is built in the model's own folder, so
    that it takes its place by a rename; Triton looks only at folders that are numbers. Unless it is to
    stand `alone`, all files of the latest version but the `exported` ones are taken over: a Python model's
    code belongs to no export. The latest version has its `texts` in the model's folder. If `serve` raises,
    all is as it was before.
    """
    before = version_numbers(model)
    final = model / str(number or (before[-1] + 1 if before else 1))
    aside = model / f".next.{os.getpid()}"
    try:
        aside.mkdir()
        if before and not alone:
            skipped = shutil.ignore_patterns(*exported, MANIFEST, "__pycache__")
            shutil.copytree(model / str(before[-1]), aside, ignore=skipped, dirs_exist_ok=True)
        yield aside, final
        replaced = [path for path in (final, *withdrawn_versions(model)) if path.exists()]
        renames = [*((path, model / f".old-{path.name}") for path in replaced), (aside, final)]
        is_latest = int(final.name) >= max(before, default=0)
        files = {model / name: text for name, text in (texts or {}).items() if is_latest}
        with all_or_nothing([model], renames, files):
            serve(final)
        with contextlib.suppress(OSError):  # the next verb tries again
            tidied(model)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def rollback(
    models: Sequence[Path],
    serve: Callable[[Mapping[Path, int]], None] = lambda _versions: None,
    *,
    undo: bool = False,
) -> dict[Path, tuple[int, int]]:
    """Withdraw the latest version of each of `models`; with `undo`, bring back the one withdrawn last.

    Return the number of the version that was the latest, and of the one that is. A withdrawn version is kept
    aside until the model's next deployment. `serve` is called with the versions in place, and may still
    refuse them: then all is as it was.
    """
    steps, renames, texts = dict[Path, tuple[int, int]](), [], dict[Path, str]()
    for model in models:
        numbers = tidied(model)
        if undo:
            path = next(iter(withdrawn_versions(model)), model)
            if path == model or int(withdrawn_number(path)) <= max(numbers, default=0):
                raise RepositoryError(f"{model} has no withdrawn version: the next deployment removes it")
            steps[model] = max(numbers, default=0), int(withdrawn_number(path))
            renames.append((path, model / withdrawn_number(path)))
        else:
            if len(numbers) < 2:
                raise RepositoryError(
                    f"{model} has no version before {numbers[0] if numbers else 'the first'}"
                )
            steps[model], path = (numbers[-1], numbers[-2]), model / str(numbers[-2])
            renames.append((model / str(numbers[-1]), model / f"{WITHDRAWN}{numbers[-1]}"))
        texts |= {model / name: text for name, text in _texts_of(model, path).items()}
    with all_or_nothing(models, renames, texts):
        serve({model: latest for model, (_, latest) in steps.items()})
    return steps


def _texts_of(model: Path, version: Path) -> dict[str, str]:
    """Return the config and the labels of a version; raise if its files are not intact."""
    config = ConfigFile.read(model)
    texts, labels = config.texts(), ""
    if (version / MANIFEST).exists():
        try:
            with malformed_as_value_error():
                about = manifest.read_manifest(version)
                texts = config.of_manifest(about).texts()
                labels = "".join(f"{label}\n" for label in map(str, about.get("labels", ())))
        except ValueError as exc:
            raise RepositoryError(
                f"{version / MANIFEST} has no config or numbers that can be used ({error_summary(exc)}): "
                "deploy the model again with `gourmet deploy`"
            ) from exc
    manifest.check_files(None, as_json(parse(texts[CONFIG])), version)
    return {**texts, **({LABELS_FILE: labels} if labels else {})}


def recalibrate(
    models: Sequence[Path],
    calibration: Mapping[str, float | str],
    facts: Mapping[str, Any],
    serve: Callable[[Path], None] = lambda _model: None,
) -> None:
    """Give the newest versions of `models` these numbers, or raise and leave everything as it was.

    `serve` is called with each in place, and may still refuse it.
    """
    texts = dict[Path, str]()
    for model in models:
        version = newest_version(model)
        before, config = manifest.read_manifest(version), ConfigFile.read(model)
        try:
            with malformed_as_value_error():
                config = config.with_version(calibration, before.get("dims", {}))
        except ValueError as exc:
            raise RepositoryError(
                f"{version / MANIFEST} has no shapes that can be used ({error_summary(exc)}): deploy the "
                "model again with `gourmet deploy`"
            ) from exc
        about = {
            **before,
            "calibration": dict(calibration),
            **facts,
            "config": config.generated,
        }
        texts[version / MANIFEST] = json.dumps(about, indent=2) + "\n"
        texts |= {model / name: text for name, text in config.texts().items()}
    with all_or_nothing(models, (), texts):
        for model in models:
            serve(model)
