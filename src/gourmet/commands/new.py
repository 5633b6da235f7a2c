"""`gourmet new`: make a new system, a classifier of pictures or a translator."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gourmet.commands.new_like import aside, check_free, new_folder, new_like
from gourmet.commands.options import alone_in, asked_stack, send_option, serving_url, to_option, url_option
from gourmet.commands.progress import bar
from gourmet.commands.running import tell_web, unload
from gourmet.commands.values import FOUND_FILE, PATH, fraction, fractions, labels_of
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.drawn import made_up
from gourmet.runtime.files import own_models
from gourmet.runtime.manifest import sha256
from gourmet.runtime.reading import check_weights
from gourmet.serving.run_file import RunningStack
from gourmet.systems import described, folders, registry


@click.command()
@click.argument("name")
@click.option(
    "--labels",
    help="Labels in the order of the network's outputs: a,b,c, or a file with a label on each line.",
)
@click.option("--title", help="Title that people read.  [default: NAME]")
@click.option(
    "--like", help="Copy size and normalisation of pictures from this system, or make a system like it."
)
@click.option("--weights", type=FOUND_FILE, help="Serve this plain .pth, .safetensors or .onnx file.")
@click.option("--architecture", help="Network of a .pth or .safetensors file: torchvision:NAME or timm:NAME.")
@click.option("--checkpoint", metavar="FOLDER-OR-NAME", help="Serve this translator, --like ours.")
@click.option("--languages", help="Languages of a checkpoint, as HTML names them: de,en.")
@click.option("--fp32", is_flag=True, help="Keep fp32 weights.")
@click.option(
    "--data",
    type=PATH,
    help="Verify with these labelled pictures, or sentences, a line each.  [default: made-up pictures]",
)
@click.option("--size", type=click.IntRange(1, 4096), help="Side of the network's input, in pixels.")
@click.option("--mean", type=fractions, help="Per-channel mean.")
@click.option("--std", type=fractions, help="Per-channel standard deviation.")
@click.option("--scale", type=fraction, help="Multiply pixels of 0 to 255 by this first.  [default: 1/255]")
@click.option("--layout", type=click.Choice(["NCHW", "NHWC"]), help="Layout of an ONNX file's input.")
@click.option(
    "--outputs",
    type=click.Choice(["logits", "probabilities"]),
    help="Output of an ONNX file.  [default: found out from its answers]",
)
@click.option("--multi-label", is_flag=True, help="A picture may have several labels, or none.")
@click.option("--yes", is_flag=True, help="Serve it although its answers look like an untrained network's.")
@to_option
@url_option(
    "Load the model into this Triton.  [default: the running stack, if it serves --to]", required=False
)
@send_option
def new(
    name: str,
    labels: str | None,
    title: str | None,
    like: str | None,
    weights: Path | None,
    architecture: str | None,
    checkpoint: str | None,
    languages: str | None,
    fp32: bool,
    data: Path | None,
    multi_label: bool,
    yes: bool,
    models: Path,
    url: str | None,
    send: bool,
    **how: Any,
) -> None:
    """Make a system called NAME that classifies pictures, and serve WEIGHTS as its model.

    The system gets a folder in GOURMET_HOME with its description (system.toml), a sample and a model card,
    but no code. The weights go through the gate into your model repository, and into the stack that runs
    here. The preparation of pictures comes from the file, or from the architecture's own weights, and is
    shown. A CHECKPOINT of a translator becomes a system with its own page, models and variable.

    \b
    gourmet new german --like translator --checkpoint FOLDER --languages de,en --data sentences.txt
    gourmet new flowers --labels daisy,rose,tulip --weights best.pth --architecture torchvision:resnet18
    """
    registry.check_free(name)
    if checkpoint:
        if labels or weights or architecture or multi_label or any(how.values()):
            raise UsageError(
                "--checkpoint brings a translator: --labels, --weights and the like are for pictures"
            )
        new_like(like, name, checkpoint, languages, data, title, models, url, fp32=fp32, send=send)
        return
    if not labels or languages or fp32:
        raise UsageError("name its --labels; --languages and --fp32 belong to a --checkpoint")
    if weights:
        click.get_current_context().with_resource(alone_in(models))
    model = models / f"{name}_onnx"
    check_free(name, [model])
    folder = folders()[1] / name
    system = PictureClassifier(
        name=name,
        title=title or registry.usual_title(name),
        model_variable=f"{name.upper()}_MODEL_NAME",
        default_model=model.name,
        labels=labels_of(labels),
        sample_file=aside(folder) / described.SAMPLE,
        datatypes=("FP32",),
        architecture=architecture or "",
        layout="NCHW",
        multi_label=multi_label,
    )
    known = [_like(like)] if like else []
    if weights:
        check_weights(weights)
    onnx = bool(weights and weights.suffix == ".onnx")
    if weights and onnx == bool(architecture):
        raise UsageError(
            f"--weights {weights}: add --architecture for .pth and .safetensors, which do not say what they "
            "are weights of, as in torchvision:resnet18; drop it for .onnx"
        )
    from gourmet.deploying.deploy import deploy
    from gourmet.deploying.target import table
    from gourmet.tasks.classification.new_system import AskedFor, as_given, deployment_of, doubt, prepared
    from gourmet.tasks.classification.torchvision_network import pictures

    chosen = AskedFor(**{option: value for option, value in how.items() if value})
    network = None
    if weights and onnx:
        system, network = as_given(system, weights, chosen, known, click.echo)
    else:
        system = replace(system, architecture=architecture or "torchvision:mobilenet_v2")
        if chosen.layout == "NHWC" or chosen.outputs == "probabilities":
            raise UsageError("--layout NHWC and --outputs probabilities are for ONNX files alone")
        known.append((f"{system.architecture}, as first trained", pictures(system.architecture)))
        system, shown = prepared(system, chosen, known)
        click.echo(shown)

    def trusted(version: Path) -> None:
        if not yes and (reason := doubt(system, version / "model.onnx")):
            raise UsageError(f"{weights} is not served: {reason}. If that is intended, give --yes")

    stack = None
    with new_folder(folder) as (undo, put_in_place):
        _write(aside(folder), system, weights)
        if weights:
            with bar("reading") as tick:
                deployment = deployment_of(system, weights, data, tick, network)
            undo.callback(shutil.rmtree, model, ignore_errors=True)
            with bar("exporting and comparing"):
                version, checks = deploy(deployment, "onnx", models, served=trusted)
            click.echo(f"{version}\n{table(checks)}")
            if not deployment.calibration["threshold"]:
                click.echo(
                    f"not calibrated: no answer is called sure. `gourmet check {model.name} --data FOLDER "
                    "--calibrate` measures it, with a folder of pictures for each label"
                )
        put_in_place()
        if weights:
            stack = _load(system, models, url, send)
    click.echo(f"{folder}: its description, a sample and its model card\n\nNext:")
    click.echo("\n".join(f"  {line}" for line in _next(system, weights, stack, models, url)))


def _write(folder: Path, system: PictureClassifier, weights: Path | None) -> None:
    from gourmet.tasks.classification.export import filled_in

    (folder / described.SAMPLE).write_bytes(made_up())
    provenance = {"weights": weights.name, "weights_sha256": sha256(weights)} if weights else {}
    described.write(folder, described.of_classifier(system), provenance)
    card = filled_in(described.MODEL_CARD, system=system, weights=weights)
    (folder / described.MODEL_CARD).write_text(card, encoding="utf-8")


def _like(like: str) -> tuple[str, dict[str, Any]]:
    """Return how the system `like` prepares pictures for its network."""
    other = registry.load(like)
    if type(other) is not PictureClassifier:
        raise UsageError(
            f"--like {like}: that system prepares its inputs in its own way; name one that takes photos"
        )
    return f"like {like}", {"size": other.input_size, "mean": other.mean, "std": other.std}


def _load(system: PictureClassifier, models: Path, url: str | None, send: bool) -> RunningStack | None:
    """Load the model into Triton, ask it for its sample, and tell the web app.

    Return the stack of this machine, or None if neither it nor a Triton at `url` serves the model.
    """
    from gourmet.commands.load_and_ask import load_and_ask

    url, stack = url or serving_url(models), asked_stack()
    if not url:
        return None
    with bar(f"loading into {url}"):
        model = models / system.default_model
        try:
            answers = load_and_ask(url, model, send=send)
        except BaseException:
            with suppress(GourmetError):
                unload(model.name, url)
            raise
    click.echo(answers)
    tell_web(system.name)
    return stack


def _next(
    system: PictureClassifier,
    weights: Path | None,
    stack: RunningStack | None,
    models: Path,
    url: str | None = None,
) -> list[str]:
    name, model = system.name, system.default_model
    usual = models == own_models()
    to, repositories = ("", "") if usual else (f" --to {models}", f" --model-repository {models}")
    if not weights:
        return [
            f"gourmet train {name} --data FOLDER     with a folder of pictures for each label",
            f"gourmet evaluate {name}",
            f"gourmet deploy {name} --format onnx{to}",
        ]
    web = (stack and stack.web_url) or "http://localhost:5000"
    there = f" --url {url}" if url else ""
    start = f"gourmet up --web-only{there}" if stack or url else f"gourmet up{repositories}"
    return [
        *([] if stack and stack.web_url else [start]),
        f"{web}/classify/{name}     its page",
        f"curl -F file=@photo.jpg '{web}/api/v1/classify?model={model}'",
        f"gourmet check {model}{there} --data FOLDER     with a folder of pictures for each label",
    ]
