"""`gourmet perf-analyzer`: the real one, out of the tritonclient wheel."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click

from gourmet.client.address import SERVER_ENV, Address
from gourmet.client.tensors import raw
from gourmet.errors import GourmetError
from gourmet.serving.connect import connect
from gourmet.serving.perf_analyzer import binary, environment, keys
from gourmet.serving.run_file import DEFAULT_URL, running_stack, stack_at
from gourmet.systems import registry


@click.command(
    name="perf-analyzer",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def perf_analyzer(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run NVIDIA's perf_analyzer with the libraries it needs; all ARGUMENTS are its own.

    \b
    gourmet perf-analyzer -m food_classifier_onnx --concurrency-range 1:4
    gourmet perf-analyzer -- --help        # NVIDIA's own

    Without -u it asks the Triton at TRITON_SERVER_URL, or else that of the running stack. Where the
    model takes texts or whole pictures and the arguments give no data, it is sent the sample of its system.
    """
    given = [*arguments, *_address_for(arguments)]
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as folder:
        command = [str(binary()), *given, *_sample_for(given, Path(folder)), *_keys_for(given)]
        status = subprocess.run(command, env=environment(Path(folder)), check=False).returncode
    # NVIDIA's ends with status 99 after its own help, which is not an error.
    ctx.exit(0 if "--help" in arguments else status)


def _address_for(arguments: Sequence[str]) -> list[str]:
    """That of TRITON_SERVER_URL or the running stack, where the arguments name none."""
    if any(word == "-u" or word.startswith("--url") for word in arguments) or "--help" in arguments:
        return []
    grpc = _protocol(arguments) == "grpc"
    url = os.environ.get(SERVER_ENV, "")
    if stack := stack_at(url) if url else running_stack():
        return ["-u", stack.grpc_url if grpc else stack.http_url]
    return ["-u", Address.of(url).grpc.place if grpc else url] if url else []


def _sample_for(arguments: Sequence[str], folder: Path) -> list[str]:
    """What to send to a model that takes bytes, for which NVIDIA's makes up letters, where nobody said."""
    named = dict(pairwise(arguments))
    model, url = named.get("-m", ""), named.get("-u", DEFAULT_URL)
    if not model or any(word.startswith(("--input-data", "--data-directory")) for word in arguments):
        return []
    try:
        with connect(f"grpc://{url}" if _protocol(arguments) == "grpc" else url) as triton:
            info = triton.describe(model)
    except GourmetError:
        return []  # perf_analyzer says it in its own words
    if not info.system or all(given.datatype != "BYTES" for given in info.inputs):
        return []
    system = registry.load(info.system)
    row = {
        name: value[0] if info.max_batch_size else value
        for name, value in system.request_inputs(system.sample(), info).items()
    }
    data = {
        name: {"b64": base64.b64encode(raw(value)).decode(), "shape": list(value.shape)}
        for name, value in row.items()
    }
    path = folder / "sample.json"
    path.write_text(json.dumps({"data": [data]}))
    click.echo(f"sends the sample of {info.system}: --input-data sends what you choose", err=True)
    return ["--input-data", str(path)]


def _keys_for(arguments: Sequence[str]) -> list[str]:
    """The keys that the arguments need, where they go to a Triton whose keys are on this machine."""
    if not any(word.startswith("--shared-memory") for word in arguments):
        return []
    return keys(dict(pairwise(arguments)).get("-u", "localhost:8000"), _protocol(arguments))


def _protocol(arguments: Sequence[str]) -> str:
    return dict(pairwise(arguments)).get("-i", "http").lower()
