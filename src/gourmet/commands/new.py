"""`gourmet new`: make a new system, a classifier of pictures or a translator."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from gourmet import repository
from gourmet.commands.options import alone_in, asked_stack, send_option, serving_url, to_option, url_option
from gourmet.commands.progress import bar
from gourmet.commands.running import tell_web, unload
from gourmet.commands.values import FOUND_FILE, PATH, fraction, fractions, labels_of
from gourmet.deploying.target import Deployment
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.drawn import made_up
from gourmet.runtime.files import HOME_ENV, own_models
from gourmet.runtime.manifest import sha256
from gourmet.runtime.reading import check_weights, in_short, read_text
from gourmet.systems import described, folders, registry

_EXAMPLES: Final = 32
# The options of a checkpoint, and those that both kinds of systems have.
_OF_CHECKPOINT: Final = ("languages", "fp32")
_OF_BOTH: Final = ("title", "like", "data")
_CARD: Final = """# {title}

Translates `{source}` into `{target}`.

- network: that of `{checkpoint}`, served like {like}
- trained on: say on what, under which licence, and what it does not know
- how right it is: `gourmet check {name} --data …` measures it; write down here what it says
- meant for: say for what, and for what not
"""


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
def new(name: str, checkpoint: str | None, models: Path, url: str | None, send: bool, **options: Any) -> None:
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
    options = {option: value for option, value in options.items() if value}
    other = [option for option in options if (option in _OF_CHECKPOINT) != bool(checkpoint)]
    if wrong := [f"--{option.replace('_', '-')}" for option in other if option not in _OF_BOTH]:
        what = "a classifier, and --checkpoint brings a translator" if checkpoint else "a --checkpoint"
        raise UsageError(f"{', '.join(wrong)}: for {what}")
    made = _Made(name, models, url or serving_url(models), send)
    if checkpoint:
        _translator(made, checkpoint, **options)
    else:
        _classifier(made, **options)


@dataclass(frozen=True)
class _Made:
    """A system that is being made: its name, and where its models go."""

    name: str
    models: Path
    triton: str | None
    send: bool

    @property
    def web(self) -> str:
        stack = asked_stack()
        return (stack and stack.web_url) or ""

    @contextlib.contextmanager
    def folder(
        self,
        files: Mapping[str, str | bytes],
        about: Mapping[str, Any],
        provenance: Mapping[str, str],
        *models: str,
    ) -> Iterator[Path]:
        """Write the system's folder; if the block fails, remove it and the models that the block deployed."""
        folder, paths = folders()[1] / self.name, [self.models / model for model in models]
        part = folder.with_name(f".{folder.name}.part")  # a name that no system has
        with contextlib.ExitStack() as during:
            during.callback(shutil.rmtree, part, ignore_errors=True)
            try:
                part.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise UsageError(
                    f"{part.parent} cannot be written ({exc.strerror}): {HOME_ENV} names another"
                ) from exc
            during.enter_context(alone_in(self.models))
            for path in (*paths, *(repository.DEFAULT / model for model in models)):
                if path.exists():  # Triton accepts each name once in all of its repositories
                    raise UsageError(f"{path} is there already: choose another name than {self.name!r}")
            undo = during.enter_context(contextlib.ExitStack())
            for file, content in files.items():
                (part / file).write_bytes(content if isinstance(content, bytes) else content.encode())
            described.write(part, about, provenance)
            part.rename(folder)
            undo.callback(shutil.rmtree, folder)
            undo.callback(self._remove, paths)
            yield folder
            undo.pop_all()
        if any(path.exists() for path in paths):
            tell_web(self.name)

    def deploy(self, deployment: Deployment, check: Callable[[Path], None] = lambda _version: None) -> None:
        """Deploy all formats, and have Triton serve them."""
        from gourmet.commands.load_and_ask import install
        from gourmet.deploying.target import table

        for form in deployment.targets:
            with bar(f"exporting {form}"):
                version, checks, answer = install(
                    deployment, form, self.models, self.triton, send=self.send, check=check
                )
            click.echo("\n".join([str(version), table(checks), *filter(None, [answer])]))

    def _remove(self, models: Sequence[Path]) -> None:
        for model in filter(Path.exists, models):
            with contextlib.suppress(GourmetError):
                unload(model.name, self.triton)
            shutil.rmtree(model)


def _classifier(
    made: _Made,
    *,
    labels: str = "",
    title: str = "",
    like: str = "",
    weights: Path | None = None,
    architecture: str = "",
    data: Path | None = None,
    multi_label: bool = False,
    yes: bool = False,
    **how: Any,
) -> None:
    """Make a classifier of pictures, and deploy its weights if there are any."""
    if not labels:
        raise UsageError("name its --labels, or a --checkpoint of a translator")
    from gourmet.tasks.classification.described_parts import export
    from gourmet.tasks.classification.export import filled_in
    from gourmet.tasks.classification.new_system import PictureOptions, doubt, prepared

    system = PictureClassifier(
        name=made.name,
        title=title or registry.usual_title(made.name),
        model_variable=f"{made.name.upper()}_MODEL_NAME",
        default_model=f"{made.name}_onnx",
        labels=labels_of(labels),
        sample_file=folders()[1] / made.name / described.SAMPLE,
        datatypes=("FP32",),
        architecture=architecture,
        layout="NCHW",
        multi_label=multi_label,
    )
    known = [_pictures_of(like)] if like else []
    if weights:
        check_weights(weights)
    system, network = prepared(system, weights, PictureOptions(**how), known, click.echo)

    def trusted(version: Path) -> None:
        if not yes and (reason := doubt(system, version / "model.onnx")):
            raise UsageError(f"{weights} is not served: {reason}. If that is intended, give --yes")

    card = filled_in(described.MODEL_CARD, system=system, weights=weights)
    with made.folder(
        {described.SAMPLE: made_up(), described.MODEL_CARD: card},
        described.of_classifier(system),
        {"weights": weights.name, "weights_sha256": sha256(weights)} if weights else {},
        system.default_model,
    ) as folder:
        if weights:
            with bar("reading") as tick:
                deployment = export(system).open(weights, data, tick, network=network)
            made.deploy(deployment, trusted)
            if not deployment.calibration["threshold"]:
                click.echo(
                    f"not calibrated: no answer is called sure. `gourmet check {system.default_model} "
                    "--data FOLDER --calibrate` measures it, with a folder of pictures for each label"
                )
    click.echo(f"{folder}: its description, a sample and its model card\n\nNext:")
    click.echo("\n".join(f"  {line}" for line in _next(made, system, weights)))


def _translator(
    made: _Made,
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

    name, title = made.name, title or registry.usual_title(made.name)
    origin = Path(checkpoint).name if Path(checkpoint).exists() else checkpoint
    card = _CARD.format(title=title, source=source, target=target, checkpoint=origin, like=like, name=name)
    about = {"like": like, "title": title, "languages": [source, target], "examples": _examples(data)}
    with made.folder(
        {described.MODEL_CARD: card}, about, {"checkpoint": origin}, name, f"{name}_stream"
    ) as folder:
        made.deploy(of_weights(name, "all", None, checkpoint, None, "", fp32=fp32))
    click.echo(f"{folder}: its description and its model card\n\nNext:")
    if not made.triton:
        click.echo("  gourmet up")
    page = f"{made.web or 'http://localhost:5000'}/translate/{name}"
    click.echo(f"  {page}     its page\n  gourmet translate --system {name} TEXT")


def _pictures_of(like: str) -> tuple[str, dict[str, Any]]:
    """Return how the system `like` prepares pictures for its network."""
    other = registry.load(like)
    if type(other) is not PictureClassifier:
        raise UsageError(
            f"--like {like}: that system prepares its inputs in its own way; name one that takes photos"
        )
    return f"like {like}", {"size": other.input_size, "mean": other.mean, "std": other.std}


def _examples(sentences: Path) -> list[str]:
    """Choose sentences evenly from the whole file; of lines with tabs, the first column."""
    try:
        lines = read_text(sentences).splitlines()
    except (OSError, ValueError) as exc:
        raise UsageError(f"--data {sentences} is not a file of texts: {in_short(exc)}") from exc
    texts = list(dict.fromkeys(text for line in lines if (text := line.partition("\t")[0].strip())))
    if not texts:
        raise UsageError(f"--data {sentences} has no sentence in it: give one on each line")
    return texts[:: max(1, len(texts) // _EXAMPLES)][:_EXAMPLES]


def _next(made: _Made, system: PictureClassifier, weights: Path | None) -> list[str]:
    name, model = system.name, system.default_model
    to, repositories = "", ""
    if made.models != own_models():
        to, repositories = f" --to {made.models}", f" --model-repository {made.models}"
    if not weights:
        return [
            f"gourmet train {name} --data FOLDER     with a folder of pictures for each label",
            f"gourmet evaluate {name}",
            f"gourmet deploy {name} --format onnx{to}",
        ]
    start = f"gourmet up --web-only --url {made.triton}" if made.triton else f"gourmet up{repositories}"
    there = f" --url {made.triton}" if made.triton else ""
    web = made.web or "http://localhost:5000"
    return [
        *([] if made.web else [start]),
        f"{web}/classify/{name}     its page",
        f"curl -F file=@photo.jpg '{web}/api/v1/classify?model={model}'",
        f"gourmet check {model}{there} --data FOLDER     with a folder of pictures for each label",
    ]
