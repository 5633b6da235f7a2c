"""`gourmet deployer`: export a network for Triton, with the flags of NVIDIA's deployer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from gourmet.commands.options import alone_in, chosen_repository, serving_url, url_option
from gourmet.commands.progress import bar
from gourmet.commands.values import FILE, POSITIVE, folder, labels_of
from gourmet.errors import GourmetError, UsageError, echo

_FORMATS: Final = ("ts-script", "ts-trace", "onnx")
_OF_TENSORRT: Final = ("--trt", "--trt-fp16", "--max_workspace_size", "--capture-cuda-graph")
_COUNT: Final = click.IntRange(0)


class _WithDashes(click.Command):
    """Takes the network's own arguments after a --, as NVIDIA's deployer does, or before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if flag := next((word for word in args if word.partition("=")[0] in _OF_TENSORRT), ""):
            raise UsageError(
                f"{flag} is TensorRT's, which is not built here: export --onnx, and build the engine with "
                "NVIDIA's trtexec in Triton's container (docs/models.md)"
            )
        return super().parse_args(ctx, [word for word in args if word != "--"])


@click.command(cls=_WithDashes)
@click.option("--ts-script", is_flag=True, help="Write TorchScript by torch.jit.script.")
@click.option("--ts-trace", is_flag=True, help="Write TorchScript by torch.jit.trace.")
@click.option("--onnx", is_flag=True, help="Write ONNX by torch.onnx.export.")
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
@click.option(
    *("--save-dir", "models"),
    type=folder,
    default="./triton_models",
    callback=chosen_repository,
    help="Write into this model repository.",
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
@click.option("--batch_size", type=POSITIVE, default=16, help="Compare answers to this many pictures.")
@click.option("--fp16", "half", is_flag=True, help="Write weights and tensors in half precision.")
@click.option("--seed", default=0, help="Seed of random weights.")
def deployer(
    models: Path,
    url: str | None,
    labels: str | None,
    ts_script: bool,
    ts_trace: bool,
    onnx: bool,
    **flags: Any,
) -> None:
    """Write a network for Triton, unless what was written answers differently.

    The flags are those of the deployer of NVIDIA's ResNeXt101 example; those from --config on may stand
    after a --, as they do there. A checkpoint is a state dict, bare or in a dictionary with other things,
    as .pth, .pth.tar or safetensors; of the first three networks also one with NVIDIA's names. `gourmet new`
    makes a system of the same checkpoint, with a page and a check of its accuracy.

    \b
    gourmet deployer --onnx --triton-model-name rnxt-onnx --triton-max-batch-size 64 --save-dir repository \\
        -- --config resnext101-32x4d --checkpoint model_checkpoint --batch_size 64
    """
    chosen = [
        form for form, is_chosen in zip(_FORMATS, (ts_script, ts_trace, onnx), strict=True) if is_chosen
    ]
    if len(chosen) != 1:
        raise UsageError(f"give one of --{', --'.join(_FORMATS)}: {len(chosen)} are given")
    from gourmet.commands.running import install
    from gourmet.export.deployer import DeployerOptions, deployment_of
    from gourmet.stack.connect import http_or_grpc_url

    options = DeployerOptions(chosen[0], labels=labels_of(labels) if labels else (), **flags)
    try:
        with alone_in(models), bar(f"{options.config} as {options.form}") as tick:
            triton = http_or_grpc_url(url) if url else serving_url(models)
            deployment = deployment_of(options, models, tick)
            version, report = install(deployment, options.form, models, triton, number=options.version)
    except GourmetError:
        echo("nothing was written", err=True)
        raise
    echo(f"weights of {options.config}: {deployment.facts['training']['weights']}", err=True)
    echo(report)
    echo(f"deployed {options.model} version {options.version}, {options.form} of {options.config}: {version}")
