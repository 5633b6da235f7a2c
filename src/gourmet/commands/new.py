"""`gourmet new`: make a new system, a classifier of pictures or a translator."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from gourmet.commands.options import alone_in, asked_stack, send_option, serving_url, to_option, url_option
from gourmet.commands.progress import bar, json_lines
from gourmet.commands.running import install, served_as_before, tell_web
from gourmet.commands.values import FOUND_FILE, PATH, fraction, fractions, labels_of
from gourmet.errors import UsageError, echo
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.made_up import clouds
from gourmet.repository.gate import Deployment
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.repository.versions import newest_intact_version
from gourmet.served.files import own_models
from gourmet.served.manifest import facts, sha256
from gourmet.served.reading import check_weights
from gourmet.systems import described, folders, registry
from gourmet.systems.data_systems import new_folder

if TYPE_CHECKING:
    from gourmet.export.hugging_face import Given
    from gourmet.learning.from_photos import Body

# The options of a checkpoint, and those that both kinds of systems have.
_OF_CHECKPOINT: Final = ("languages", "fp32")
_OF_BOTH: Final = ("title", "like", "data")


@click.command()
@click.argument("name")
@click.option(
    "--labels",
    help="Labels in the order of the network's outputs: a,b,c, or a file with a label on each line.  "
    "[default: the folders of --data]",
)
@click.option("--title", help="Title that people read.  [default: NAME]")
@click.option(
    "--like", help="Copy size and normalisation of pictures from this system, or make a system like it."
)
@click.option("--weights", type=FOUND_FILE, help="Serve this plain .pth, .safetensors or .onnx file.")
@click.option("--architecture", help="Network of a .pth or .safetensors file: torchvision:NAME or timm:NAME.")
@click.option("--checkpoint", metavar="FOLDER-OR-NAME", help="Serve this translator, --like ours.")
@click.option(
    "--from",
    "source",
    metavar="FOLDER|hf:OWNER/MODEL",
    help="Serve this classifier, as Hugging Face's transformers saves it.",
)
@click.option("--languages", help="Languages of a checkpoint, as HTML names them: de,en.")
@click.option("--fp32", is_flag=True, help="Keep fp32 weights.")
@click.option(
    "--data",
    type=PATH,
    help="Learn these labelled pictures; or verify --weights with them, or a checkpoint with sentences.",
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
@click.option("--json", "as_json", is_flag=True, help="With --data alone: print progress and result as JSON.")
def new(name: str, checkpoint: str | None, models: Path, url: str | None, send: bool, **options: Any) -> None:
    """Make a system called NAME that classifies pictures, from a folder of photos or from WEIGHTS.

    With --data alone, a folder of photos for each class becomes a classifier in about a minute: its last
    layer is solved on a network that is here. Each class needs 8 photos. The folders are the labels; --labels
    puts them into another order. A folder `other` has photos of none of the classes. The table is by
    five-fold cross-validation.

    The system gets a folder in GOURMET_HOME with its description (system.toml), a sample and a model card,
    but no code. The weights go through the gate into your model repository, and into the stack that runs
    here. The preparation of pictures comes from the file, or from the architecture's own weights, and is
    shown. A CHECKPOINT of a translator becomes a system with its own page, models and variable.

    \b
    gourmet new flowers --data FOLDER
    gourmet new german --like translator --checkpoint FOLDER --languages de,en --data sentences.txt
    gourmet new flowers --labels daisy,rose,tulip --weights best.pth --architecture torchvision:resnet18
    gourmet new things --from hf:microsoft/resnet-18
    """
    registry.check_free(name)
    options = {option: value for option, value in options.items() if value}
    other = [option for option in options if (option in _OF_CHECKPOINT) != bool(checkpoint)]
    if wrong := [f"--{option.replace('_', '-')}" for option in other if option not in _OF_BOTH]:
        what = "a classifier, and --checkpoint brings a translator" if checkpoint else "a --checkpoint"
        raise UsageError(f"{', '.join(wrong)}: for {what}")
    where = _Where(models, url or serving_url(models), send)
    if checkpoint:
        _translator(name, where, checkpoint, **options)
    elif "source" in options:
        _from_hugging_face(name, where, **options)
    elif options.keys() <= {"labels", "title", "data", "as_json"} and "data" in options:
        _from_photos(name, where, **options)
    else:
        _classifier(name, where, **options)


class _Where(NamedTuple):
    """The repository for the models of the new system, and the Triton that loads them, if any."""

    models: Path
    triton: str | None
    send: bool


def _classifier(
    name: str,
    where: _Where,
    *,
    labels: str = "",
    title: str = "",
    like: str = "",
    weights: Path | None = None,
    architecture: str = "",
    data: Path | None = None,
    multi_label: bool = False,
    yes: bool = False,
    given: Given | None = None,
    **how: Any,
) -> None:
    """Make a classifier of pictures, and deploy its weights if there are any.

    Of a `given` model, which comes with its labels and pictures, `weights` are the exported file.
    """
    if not labels and not given:
        raise UsageError(
            "give --data, a folder of photos for each class; or --weights with --labels; or a --checkpoint"
        )
    from gourmet.systems import described_pictures as parts

    system = PictureClassifier(
        **described.fields_of_name(name, folders()[1] / name),
        title=title or registry.usual_title(name),
        labels=given.labels if given else labels_of(labels),
        datatypes=("FP32",),
        architecture=architecture,
        layout="NCHW",
        multi_label=multi_label,
    )
    known = [_pictures_of(like)] if like else []
    if weights:
        check_weights(weights)
    system, network = parts.prepared(system, weights, parts.PictureOptions(**how), known, echo)
    if given and network:
        system = replace(system, **given.pictures)
        echo(given.compare(system, network.scores_for(system, batched=False)))

    def trusted(version: Path) -> None:
        if not yes and (reason := parts.doubt(system, version / "model.onnx")):
            raise UsageError(f"{weights} is not served: {reason}. If that is intended, give --yes")

    model = system.default_model
    about = described.description_of(system)
    source = given.weights if given else weights
    origin = {"weights": source.name, "weights_sha256": sha256(source)} if source else {}
    files: dict[str, str | bytes] = {described.MODEL_CARD: parts.card(system, weights)}
    files[described.SAMPLE] = clouds()
    with _make_system(name, where, {**about, "provenance": origin}, files, [model]) as folder:
        if weights:
            with bar("reading") as tick:
                deployment = parts.export(system).open(weights, data, tick, network=network)
            _deploy(deployment, where, trusted)
            if not deployment.calibration["threshold"]:
                echo(
                    f"not calibrated: no answer is called sure. `gourmet check {model} "
                    "--data FOLDER --calibrate` measures it, with a folder of pictures for each label"
                )
    echo(f"{folder}: its description, a sample and its model card\n\nNext:")
    echo("\n".join(f"  {line}" for line in _next(where, system, weights)))


def _from_hugging_face(
    name: str,
    where: _Where,
    *,
    source: str,
    title: str = "",
    data: Path | None = None,
    yes: bool = False,
    **others: Any,
) -> None:
    """Make a classifier of a model that transformers saved."""
    if others:
        raise UsageError(f"--from has labels, weights and sizes of its own: drop --{next(iter(others))}")
    from gourmet.export import hugging_face

    given = hugging_face.open_folder(hugging_face.find(source))
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch, "model.onnx")
        with bar("exporting"):
            given.write(weights)
        _classifier(
            name,
            where,
            title=title,
            weights=weights,
            data=data,
            multi_label=given.multi_label,
            yes=yes,
            given=given,
            size=given.pictures["input_size"],
            mean=given.pictures["mean"],
            std=given.pictures["std"],
            outputs="logits",
        )


def _from_photos(
    name: str, where: _Where, *, data: Path, labels: str = "", title: str = "", as_json: bool = False
) -> None:
    """Make a classifier of the photos in `data`, and serve it."""
    from gourmet.learning import from_photos

    with json_lines(0.0, 0.1) if as_json else bar("reading") as tick:
        photos = from_photos.Photos.read(data, labels_of(labels) if labels else (), tick)
    system = from_photos.describe(
        PictureClassifier(
            **described.fields_of_name(name, folders()[1] / name),
            title=title or registry.usual_title(name),
            labels=photos.labels,
        )
    )
    with json_lines(0.1, 0.8) if as_json else bar("learning") as tick:
        made, tried = from_photos.make(system, photos, [from_photos.own_body(), *served_bodies()], tick)
    files: dict[str, str | bytes] = {described.MODEL_CARD: made.card(), described.SAMPLE: photos.sample()}
    about = {
        **described.description_of(system),
        "provenance": {"photos": data.resolve().name, "body": made.body.title},
    }
    with _make_system(name, where, about, files, [system.default_model]) as folder:
        if as_json:
            echo(json.dumps({"share": 0.85, "doing": "serving"}))
        _deploy(made.deployment(), where, err=as_json)
    if as_json:
        echo(json.dumps(made.as_dict()))
        return
    bodies = " to ".join(f"{one.right:.2f}" for one in sorted(tried, key=lambda one: -one.right))
    echo(f"body: {made.body.title}, right for {bodies}\n\n{made.report()}\n")
    echo(f"{folder}: its description, a sample and its model card\n\nNext:")
    echo("\n".join(f"  {line}" for line in _next(where, system, data)))


def served_bodies() -> Iterator[Body]:
    """Yield the shipped networks of pixels with a rehearsal set, as bodies of other classifiers."""
    from gourmet.evaluation.rehearsal import rehearsal_path
    from gourmet.learning.from_photos import Body

    for system in registry.load_all().values():
        version = newest_intact_version(DEFAULT_REPOSITORY / system.default_model)
        about = facts(version) if version and not registry.is_data(system.name) else {}
        for file, form in about.get("also", {}).items():
            if (
                version
                and rehearsal_path(version / about["file"]).exists()
                and "uint8" in str(form.get("input"))
            ):
                title = f"{system.name}'s {about['network']['architecture']}"
                yield Body(title, version / file, version / about["file"])


def _translator(
    name: str,
    where: _Where,
    checkpoint: str,
    *,
    like: str = "",
    languages: str = "",
    data: Path | None = None,
    title: str = "",
    fp32: bool = False,
) -> None:
    """Make another pair of languages, and deploy the models of its checkpoint."""
    if like not in registry.patterns():
        raise UsageError(f"--like {like or '…'}: a checkpoint can be like {', '.join(registry.patterns())}")
    source, comma, target = (text.strip() for text in languages.partition(","))
    if not comma or not data:
        raise UsageError(
            "add --languages, such as de,en, and --data, a file with a sentence to translate on each line"
        )
    from gourmet.commands.deploy import of_weights

    parts = registry.parts_like(like)
    origin = Path(checkpoint).name if Path(checkpoint).exists() else checkpoint
    about = {
        "like": like,
        "title": title or registry.usual_title(name),
        "languages": [source, target],
        "examples": parts.examples(data),
    }
    files = {described.MODEL_CARD: parts.card(name, about, origin)}
    about["provenance"] = {"checkpoint": origin}
    with _make_system(name, where, about, files, [name, f"{name}_stream"]) as folder:
        _deploy(of_weights(name, "all", None, checkpoint, None, "", fp32=fp32), where)
    echo(f"{folder}: its description and its model card\n\nNext:")
    if not where.triton:
        echo("  gourmet up")
    page = f"{_web() or 'http://localhost:5000'}/translate/{name}"
    echo(f"  {page}     its page\n  gourmet translate --system {name} TEXT")


@contextlib.contextmanager
def _make_system(
    name: str,
    where: _Where,
    about: Mapping[str, Any],
    files: Mapping[str, str | bytes],
    models: Sequence[str],
) -> Iterator[Path]:
    """Make the folder of the system, whose `models` the block deploys, or leave everything as it was."""
    paths = [where.models / model for model in models]
    with (
        new_folder(name, about, files, paths, alone_in(where.models)) as folder,
        served_as_before(where.triton, paths, send=where.send),
    ):
        yield folder
    if any(path.exists() for path in paths):
        tell_web(name)


def _deploy(
    deployment: Deployment,
    where: _Where,
    check: Callable[[Path], None] = lambda _version: None,
    *,
    err: bool = False,
) -> None:
    """Deploy all formats, and have Triton serve them."""
    for form in deployment.targets:
        with bar(f"exporting {form}"):
            version, report = install(
                deployment, form, where.models, where.triton, send=where.send, check=check
            )
        echo(f"{version}\n{report}", err=err)


def _pictures_of(like: str) -> tuple[str, dict[str, Any]]:
    """Return how the system `like` prepares pictures for its network."""
    other = registry.load(like)
    if not isinstance(other, PictureClassifier) or type(other).pixels is not PictureClassifier.pixels:
        raise UsageError(
            f"--like {like}: that system prepares its inputs in its own way; name one that takes photos"
        )
    return f"like {like}", {"size": other.input_size, "mean": other.mean, "std": other.std}


def _web() -> str:
    """Return the address of the running web app; empty if none runs."""
    stack = asked_stack()
    return (stack and stack.web_url) or ""


def _next(where: _Where, system: PictureClassifier, weights: Path | None) -> list[str]:
    """Return the verbs and addresses that the new system is used by."""
    name, model, web, triton = system.name, system.default_model, _web(), where.triton
    to, repositories = "", ""
    if where.models != own_models():
        to, repositories = f" --to {where.models}", f" --model-repository {where.models}"
    if not weights:
        return [
            f"gourmet train {name} --data FOLDER     with a folder of pictures for each label",
            f"gourmet evaluate {name}",
            f"gourmet deploy {name} --format onnx{to}",
        ]
    start = f"gourmet up --web-only --url {triton}" if triton else f"gourmet up{repositories}"
    there = f" --url {triton}" if triton else ""
    page = web or "http://localhost:5000"
    return [
        *([] if web else [start]),
        f"{page}/classify/{name}     its page",
        f"curl -F file=@photo.jpg '{page}/api/v1/classify?model={model}'",
        f"gourmet check {model}{there} --data FOLDER     with a folder of pictures for each label",
    ]
