"""`gourmet perf-analyzer`: run NVIDIA's program with the libraries that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click

from gourmet.client.address import SERVER_ENV, Address
from gourmet.errors import GourmetError
from gourmet.measure.inputs import for_perf_analyzer, rows_of
from gourmet.serving.connect import connect
from gourmet.serving.perf_analyzer import binary, environment, keys
from gourmet.serving.run_file import running_stack, stack_at
from gourmet.systems import registry


@click.command(
    name="perf-analyzer", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def perf_analyzer(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run NVIDIA's perf_analyzer with the libraries it needs; all ARGUMENTS are its own.

    \b
    gourmet perf-analyzer -m food_classifier_onnx --concurrency-range 1:4
    gourmet perf-analyzer -- --help        # NVIDIA's own

    Without -u it asks the Triton at TRITON_SERVER_URL, or else that of the running stack. Without
    --input-data a model that takes photos or texts is sent the sample of its system.
    """
    passed = [*arguments, *_address_for(arguments)]
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as folder:
        command = [str(binary()), *passed, *_sample_for(passed, Path(folder)), *_keys_for(passed)]
        status = subprocess.run(command, env=environment(Path(folder)), check=False).returncode
    # NVIDIA's ends with status 99 after its own help, which is not an error.
    ctx.exit(0 if "--help" in arguments else status)


def program() -> None:
    """Run perf_analyzer as the command of that name."""
    perf_analyzer.main(["--", *sys.argv[1:]], prog_name="perf_analyzer")


def _address_for(arguments: Sequence[str]) -> list[str]:
    """Return the address of TRITON_SERVER_URL or the running stack, if the arguments name none."""
    if any(word == "-u" or word.startswith("--url") for word in arguments) or "--help" in arguments:
        return []
    grpc = _protocol(arguments) == "grpc"
    url = os.environ.get(SERVER_ENV, "")
    if stack := stack_at(url) if url else running_stack():
        return ["-u", stack.grpc_url if grpc else stack.http_url]
    return ["-u", Address.of(url).grpc.place if grpc else url] if url else []


def _sample_for(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return arguments that send the sample of the model's system to a model of bytes, and not noise."""
    named, grpc = dict(pairwise(arguments)), _protocol(arguments) == "grpc"
    model, url = named.get("-m", ""), named.get("-u", "localhost:8001" if grpc else "localhost:8000")
    if not model or any(word.startswith(("--input-data", "--data-directory")) for word in arguments):
        return []
    try:
        with connect(f"grpc://{url}" if grpc else url) as triton:
            info = triton.describe(model)
    except GourmetError:
        return []  # perf_analyzer reports it itself
    if info.system not in registry.names() or all(tensor.datatype != "BYTES" for tensor in info.inputs):
        return []
    system = registry.load(info.system)
    click.echo(f"sends the sample of {info.system}: --input-data sends what you choose", err=True)
    rows = rows_of(info, system, [system.sample()], "the sample")
    return ["--input-data", str(for_perf_analyzer(rows, folder / "sample.json"))]


def _keys_for(arguments: Sequence[str]) -> list[str]:
    """Return the keys for shared memory, if they are those of a Triton on this machine."""
    if not any(word.startswith("--shared-memory") for word in arguments):
        return []
    return keys(dict(pairwise(arguments)).get("-u", "localhost:8000"), _protocol(arguments))


def _protocol(arguments: Sequence[str]) -> str:
    return dict(pairwise(arguments)).get("-i", "http").lower()
