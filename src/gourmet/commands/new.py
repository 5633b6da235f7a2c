"""`gourmet new`: a picture classification system that was not there before."""

from __future__ import annotations

import keyword
import re
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click
import psutil

from gourmet import repository
from gourmet.commands.labels import labels_of
from gourmet.commands.options import serving_url, to_option
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FILE, PATH
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.serving.client import ask_sample
from gourmet.serving.run_file import Stack, running_stack
from gourmet.serving.waiting import http_ok, wait_until
from gourmet.systems import folders, registry

_RELOADED_WITHIN_S: Final = 60.0
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{1,31}")


@click.command()
@click.argument("name")
@click.option(
    "--labels", required=True, help="In the order of the network's outputs: a,b,c, or a file with one a line."
)
@click.option("--title", help="What people call it.  [default: NAME]")
@click.option("--like", help="Take the size and the normalisation of pictures from this system.")
@click.option("--weights", type=FOUND_FILE, help="A plain .pth, .safetensors or .onnx file, to be served.")
@click.option("--architecture", help="What .pth and .safetensors are weights of, as in torchvision:resnet18.")
@click.option("--data", type=PATH, help="Labelled pictures to verify with.  [default: made-up ones]")
@to_option
def new(
    name: str,
    labels: str,
    title: str | None,
    like: str | None,
    weights: Path | None,
    architecture: str | None,
    data: Path | None,
    models: Path,
) -> None:
    """Make a picture classification system called NAME, and serve WEIGHTS as its model.

    It gets a folder of its own: a contract, what trains, evaluates and exports it, a sample, a model card
    and a test. The weights go through the gate into the model repository, and into the stack that runs here.

    \b
    gourmet new flowers --labels daisy,rose,tulip --weights best.pth --architecture torchvision:resnet18
    """
    # A module of the package would be hidden by a system of its name: no folder of systems may hold either.
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} is not a valid name of a system: use 2 to 32 lower-case letters, digits and _, "
            "a letter first"
        )
    model = models / f"{name}_onnx"
    for path in (*(each / file for each in folders() for file in (name, f"{name}.py")), model):
        if path.exists():
            raise UsageError(f"{path} is there already: choose another name than {name!r}")
    folder = folders()[:2][-1] / name  # the first of GOURMET_SYSTEMS, if there is one
    aside = folder.with_name(f".{name}.part")
    system = PictureClassifier(
        name=name,
        title=title or name.replace("_", " ").capitalize(),
        model_variable=f"{name.upper()}_MODEL_NAME",
        default_model=model.name,
        labels=labels_of(labels),
        sample_file=aside / "sample.jpg",
        datatypes=("FP32",),
        **_prepared_like(like),
    )
    onnx = bool(weights and weights.suffix == ".onnx")
    if weights and onnx == bool(architecture):
        raise UsageError(
            f"--weights {weights}: add --architecture for .pth and .safetensors, which do not say what they "
            "are weights of, as in torchvision:resnet18; drop it for .onnx"
        )
    from gourmet.deploying.deploy import deploy
    from gourmet.deploying.target import table
    from gourmet.tasks.classification.export import filled_in
    from gourmet.tasks.classification.new_system import as_given, deployment_of, write_system

    if weights and onnx:
        system = as_given(system, weights)
    architecture = "" if onnx else architecture or "torchvision:mobilenet_v2"
    stack = None
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, aside, ignore_errors=True)
        write_system(system, architecture, weights)
        if weights:
            with bar("reading") as tick:
                deployment = deployment_of(system, architecture, weights, data, tick)
            undo.callback(shutil.rmtree, model, ignore_errors=True)
            with bar("exporting and comparing"):
                version, checks = deploy(deployment, "onnx", models)
            click.echo(f"{version}\n{table(checks)}")
        aside.rename(folder)
        undo.callback(shutil.rmtree, folder)
        test = _place_of_test(folder)
        undo.callback(test.unlink, missing_ok=True)
        test.write_text(filled_in("test_system.py", system=system), encoding="utf-8")
        if weights:
            stack = _load(system, models)
        undo.pop_all()
    click.echo(f"{folder}: its contract, its model card and what trains it\n{test}: its test\n\nNext:")
    click.echo("\n".join(f"  {line}" for line in _next(system, weights, stack, models)))


def _prepared_like(like: str | None) -> dict[str, Any]:
    """How pictures become the network's input, as in the system `like`."""
    if like is None:
        return {}
    other = registry.load(like)
    if type(other) is not PictureClassifier:
        raise UsageError(
            f"--like {like}: that system prepares its inputs in its own way; name one that takes photos"
        )
    return {"input_size": other.input_size, "mean": other.mean, "std": other.std}


def _place_of_test(folder: Path) -> Path:
    """Beside the product's own tests, for a system of the checkout; else in its folder."""
    tests = repository.DEFAULT.parents[1] / "tests" / "unit"
    place = tests if folder.parent == folders()[0] and tests.is_dir() else folder
    return place / f"test_system_{folder.name}.py"


def _load(system: PictureClassifier, models: Path) -> Stack | None:
    """Load the model into the stack that runs here, ask it its sample, and tell the web app.

    None where no stack serves `models`.
    """
    from gourmet.deploying.deploy import load

    url, stack = serving_url(models), running_stack()
    if not url or not stack:
        return None
    with bar("loading into the running stack"):
        load(url, system.default_model)
        answer = ask_sample(url, system.name, system.default_model)
    click.echo(f"{system.default_model} answers: {answer}")
    if stack.web_url:
        with bar("telling the web app"):
            _restart_workers(stack, system)
    return stack


def _restart_workers(stack: Stack, system: PictureClassifier) -> None:
    """Have gunicorn start new workers, which find the system, and let the old ones finish what they do."""
    for child in psutil.Process(stack.pid).children():
        if "gunicorn" in child.cmdline():
            old = child.children()
            child.send_signal(signal.SIGHUP)
            psutil.wait_procs(old, _RELOADED_WITHIN_S)
    page = f"{stack.web_url}/classify/{system.name}"
    try:
        wait_until(lambda: http_ok(page), _RELOADED_WITHIN_S, f"{page} did not answer")
    except TimeoutError as exc:  # the model serves all the same
        click.echo(f"{exc}: stop `gourmet up` and start it again", err=True)


def _next(system: PictureClassifier, weights: Path | None, stack: Stack | None, models: Path) -> list[str]:
    name, model = system.name, system.default_model
    usual = models == repository.DEFAULT
    to, repositories = ("", "") if usual else (f" --to {models}", f" --model-repository {models}")
    if not weights:
        return [
            f"gourmet train {name} --data FOLDER     with a folder of pictures for each label",
            f"gourmet evaluate {name}",
            f"gourmet deploy {name} --format onnx{to}",
        ]
    web = (stack and stack.web_url) or "http://localhost:5000"
    start = "gourmet up --web-only" if stack else f"gourmet up{repositories}"
    return [
        *([] if stack and stack.web_url else [start]),
        f"{web}/classify/{name}     its page",
        f"curl -F file=@photo.jpg '{web}/api/v1/classify?model={model}'",
        f"gourmet check {model} --data FOLDER     with a folder of pictures for each label",
    ]
