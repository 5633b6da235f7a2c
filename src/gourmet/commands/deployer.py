"""`gourmet deployer`: any network in a format that Triton serves, with NVIDIA's flags; and its client."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import click

from gourmet.commands.options import alone_in, serving_url, url_option
from gourmet.commands.progress import bar
from gourmet.commands.report_output import write_json
from gourmet.commands.values import FILE, FOLDER, FOUND, FOUND_FILE, POSITIVE, labels_of
from gourmet.errors import GourmetError, UsageError
from gourmet.reports.table import columns

_FORMATS: Final = ("ts-script", "ts-trace", "onnx", "trt")
_WORKSPACE: Final = 512 << 20
_COUNT: Final = click.IntRange(0)
_SHARE: Final = click.FloatRange(0, 1)


class _WithClient(click.Command):
    """Takes the network's own arguments after a --, as NVIDIA's deployer does, or before it.

    `client` as the first word is the other of NVIDIA's two programs.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["client"]:
            return client.make_context(f"{info_name} client", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [word for word in args if word != "--"])


@click.command(cls=_WithClient)
@click.option("--ts-script", is_flag=True, help="Write TorchScript by torch.jit.script.")
@click.option("--ts-trace", is_flag=True, help="Write TorchScript by torch.jit.trace.")
@click.option("--onnx", is_flag=True, help="Write ONNX by torch.onnx.export.")
@click.option("--trt", is_flag=True, help="Write a TensorRT engine.")
@click.option("--triton-no-cuda", "no_cuda", is_flag=True, help="Serve on the CPU, even with a GPU.")
@click.option("--triton-model-name", "model", default="model", help="Name of the model and of its folder.")
@click.option(
    "--triton-model-version", "version", type=POSITIVE, default=1, help="Write or replace this version."
)
@url_option(
    "Load the model into this Triton (HTTP or gRPC) and ask it once.  "
    "[default: the running stack, if it serves --save-dir]",
    "--triton-server-url",
    required=False,
)
@click.option("--triton-max-batch-size", "max_batch_size", type=_COUNT, default=8, help="Largest batch.")
@click.option(
    *("--triton-dyn-batching-delay", "delay_ms"),
    type=float,
    default=0.0,
    help="Milliseconds to wait for more requests; 0 and -1 are static batching.",
)
@click.option("--triton-engine-count", "engines", type=POSITIVE, default=1, help="Number of instances.")
@click.option("--save-dir", type=FOLDER, default="./triton_models", help="Write into this model repository.")
@click.option(
    "--max_workspace_size",
    "workspace",
    type=POSITIVE,
    default=_WORKSPACE,
    help="Bytes for TensorRT's builder.",
)
@click.option("--trt-fp16", is_flag=True, help="Let TensorRT compute in half precision.")
@click.option(
    "--capture-cuda-graph", "cuda_graphs", type=_COUNT, default=1, help="1: TensorRT uses CUDA graphs."
)
@click.option("--labels", help="Names of the outputs in order: a,b,c, or a file, one a line.")
@click.option(
    "--config",
    required=True,
    help="resnet50, resnext101-32x4d, se-resnext101-32x4d, resnet50-v1, torchvision:NAME or timm:NAME.",
)
@click.option(
    "--checkpoint", type=FILE, help="Read weights from this file.  [default: at random from --seed]"
)
@click.option("--batch_size", type=POSITIVE, default=16, help="Compare answers to this many rows.")
@click.option("--fp16", "half", is_flag=True, help="Write weights and tensors in half precision.")
@click.option("--seed", default=0, help="Seed of random weights and of the rows that are compared.")
def deployer(url: str | None, save_dir: Path, labels: str | None, **flags: Any) -> None:
    """Write a network for Triton, unless what was written answers differently.

    The flags are those of the deployer of NVIDIA's ResNeXt101 example; those from --config on may stand
    after a --, as they do there. A checkpoint is a state dict, bare or in a dictionary with other things,
    as .pth, .pth.tar or safetensors; of the first three networks also one with NVIDIA's names.

    \b
    gourmet deployer --onnx --triton-model-name rnxt-onnx --triton-max-batch-size 64 --save-dir repository \\
        -- --config resnext101-32x4d --checkpoint model_checkpoint --batch_size 64
    gourmet deployer client --help        # ask what was deployed
    """
    chosen = [form for form in _FORMATS if flags.pop(form.replace("-", "_"))]
    if len(chosen) != 1:
        raise UsageError(f"give one of --{', --'.join(_FORMATS)}: {len(chosen)} are given")
    (form,), model = chosen, flags["model"]
    for is_wrong, why in (
        ("/" in model or model.startswith("."), f"{model!r} is not a valid name of a folder"),
        (
            flags["delay_ms"] > 0 and flags["max_batch_size"] < 1,
            "--triton-dyn-batching-delay needs a --triton-max-batch-size of at least 1",
        ),
        (form == "trt" and flags["no_cuda"], "an engine runs on a GPU alone: leave out --triton-no-cuda"),
    ):
        if is_wrong:
            raise UsageError(why)
    from gourmet.deploying.deploy import deploy
    from gourmet.deploying.target import table
    from gourmet.serving.connect import connect_either
    from gourmet.tasks.classification.deployer_model import DeployerOptions, made

    options = DeployerOptions(form, labels=labels_of(labels) if labels else (), **flags)
    url, existed = url or serving_url(save_dir), (save_dir / model).exists()

    def serve(_version: Path) -> None:
        if server and server.load(model):
            click.echo(ready.ask(server, model))
        elif server:
            click.echo(f"{url} polls its repository: it loads {model} by itself, and was not asked")

    try:
        with (
            alone_in(save_dir),
            connect_either(url) if url else nullcontext() as server,
            bar(f"{options.config} as {form}") as tick,
        ):
            ready = made(options, save_dir, tick)
            weights = ready.deployment.facts["training"]["weights"]
            click.echo(f"weights of {options.config}: {weights}", err=True)
            try:
                folder, checks = deploy(ready.deployment, form, save_dir, options.version, serve)
            except BaseException:
                if server:
                    with suppress(GourmetError):  # have it serve what it did before
                        server.load(model) if existed else server.unload(model)
                raise
    except GourmetError:
        click.echo("nothing was written", err=True)
        raise
    click.echo(table(checks))
    click.echo(f"deployed {model} version {options.version}, {form} of {options.config}: {folder}")


@click.command()
@url_option("Triton's HTTP or gRPC address.", "--triton-server-url")
@click.option("--triton-model-name", "model", required=True, help="Name of the deployed model.")
@click.option("-v", "--verbose", is_flag=True, help="Print the classes of each batch.")
@click.option(
    *("--inference_data", "data"),
    type=FOUND,
    help="A .bin of raw rows, or a folder with a folder of pictures for each class.  [default: noise]",
)
@click.option("--batch_size", type=POSITIVE, default=1, help="Rows per request.")
@click.option("--fp16", "half", is_flag=True, help="Send half precision.")
@click.option("--rows", "count", type=POSITIVE, default=64, help="Number of rows of noise to send.")
@click.option("--seed", default=0, help="Seed of the noise.")
@click.option("--reference", type=FOUND_FILE, help="The checkpoint, to compare with the network itself.")
@click.option("--config", default="", help="The network of --reference, as the deployer names it.")
@click.option("--min-top1", type=_SHARE, help="Fail if accuracy is below this share.")
@click.option("--min-agreement", type=_SHARE, help="Fail if agreement with the network is below this share.")
@click.option("--max-difference", type=float, help="Fail if a score differs by more.  [default: the gate's]")
@click.option("--json", "json_to", metavar="FILE", help="Write the numbers as JSON; `-` prints them instead.")
def client(url: str, verbose: bool, json_to: str | None, model: str, **options: Any) -> None:
    """Ask a deployed network; report how often it is right and how close it is to its original network.

    \b
    gourmet deployer client --triton-server-url localhost:8001 --triton-model-name rnxt-onnx \\
        --config resnext101-32x4d --reference model_checkpoint --min-agreement 1
    """
    if options["reference"] and not options["config"]:
        raise UsageError("--reference needs --config, which says what network the checkpoint is of")
    if not options["reference"] and (options["min_agreement"], options["max_difference"]) != (None, None):
        raise UsageError("--min-agreement and --max-difference need a --reference to compare with")
    from gourmet.serving.connect import connect_either
    from gourmet.tasks.classification.deployer_model import ClientOptions, ask

    def say(words: str) -> None:
        if verbose:
            click.echo(words, err=True)

    with connect_either(url) as triton, bar(model) as tick:
        figures, faults = ask(triton, ClientOptions(model, **options), tick, say)
    if json_to:
        write_json(figures, json_to)
    if json_to != "-":
        shown = [
            (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
            for name, value in figures.items()
            if value is not None
        ]
        click.echo(columns(shown))
    if faults:
        raise GourmetError("\n       ".join(faults))
