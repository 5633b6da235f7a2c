"""`gourmet perf-analyzer`: NVIDIA's program, downloaded at its first use, with its libraries and keys."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from gourmet.bench.inputs import for_perf_analyzer, rows_of
from gourmet.errors import GourmetError, echo
from gourmet.served.files import written_aside
from gourmet.stack import api_keys
from gourmet.stack.connect import connect
from gourmet.stack.run_file import running_stack, stack_at
from gourmet.stack.triton_server import find_wheel
from gourmet.systems import registry
from gourmet.triton_client.address import SERVER_ENV, Address

# Two libraries that perf_analyzer needs, with their longer names in nvidia-pytriton.
_LIBRARIES: Final = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}

# The last release for older C libraries is in the wheel of NVIDIA's client; later ones have their own wheel.
_OLDER: Final = "tritonclient==2.50.0"
_NEWER: Final = "perf-analyzer==2.60.0"
_GLIBC_OF_NEWER: Final = (2, 38)


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
        command = [str(_binary()), *passed, *_sample_for(passed, Path(folder)), *_keys_for(passed)]
        status = subprocess.run(command, env=_environment(Path(folder)), check=False).returncode
    # NVIDIA's ends with status 99 after its own help, which is not an error.
    ctx.exit(0 if "--help" in arguments else status)


def program() -> None:
    """Run perf_analyzer as the command of that name."""
    perf_analyzer.main(["--", *sys.argv[1:]], prog_name="perf_analyzer")


def find_program() -> Path:
    """Return where the program is, or will be."""
    return Path(sysconfig.get_path("scripts"), "nvidia_perf_analyzer")


def _binary() -> Path:
    """Return the path of the program in this environment; download it first if it is missing."""
    program = find_program()
    if program.is_file():
        return program
    glibc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    package = _NEWER if glibc >= _GLIBC_OF_NEWER else _OLDER
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as folder:
        download = [sys.executable, "-P", "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package]
        done = subprocess.run(download, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise GourmetError(
                f"pip cannot download {package}, which has perf_analyzer "
                f"({done.stderr.strip().rpartition(chr(10))[2]}): put the program at {program}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel, written_aside(program) as aside:
            (name,) = (name for name in wheel.namelist() if name.endswith("bin/perf_analyzer"))
            aside.write_bytes(wheel.read(name))
            aside.chmod(0o755)
    return program


def _environment(folder: Path) -> dict[str, str]:
    """Return our environment, with links in `folder` to the libraries in the wheel."""
    for name, pattern in _LIBRARIES.items():
        for library in sorted(find_wheel().libraries.glob(pattern))[-1:]:
            (folder / name).symlink_to(library)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def _address_for(arguments: Sequence[str]) -> list[str]:
    """Return the address of TRITON_SERVER_URL or the running stack, if the arguments name none."""
    if any(word == "-u" or word.startswith("--url") for word in arguments) or "--help" in arguments:
        return []
    grpc = _protocol(arguments) == "grpc"
    url = os.environ.get(SERVER_ENV, "")
    if stack := stack_at(url) if url else running_stack():
        return ["-u", stack.grpc_url if grpc else stack.http_url]
    return ["-u", Address.of(url).grpc.netloc if grpc else url] if url else []


def _sample_for(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return arguments that send the sample of the model's system to a model of bytes, and not noise.

    Asking about the model loads it, if it waits to be asked.
    """
    named, grpc = dict(pairwise(arguments)), _protocol(arguments) == "grpc"
    model, url = named.get("-m", ""), named.get("-u", "localhost:8001" if grpc else "localhost:8000")
    if not model:
        return []
    try:
        with connect(f"grpc://{url}" if grpc else url) as triton:
            info = triton.describe(model)
    except GourmetError:
        return []  # perf_analyzer reports it itself
    if any(word.startswith(("--input-data", "--data-directory")) for word in arguments):
        return []
    if info.system not in registry.names() or all(tensor.datatype != "BYTES" for tensor in info.inputs):
        return []
    system = registry.load(info.system)
    echo(f"sends the sample of {info.system}: --input-data sends what you choose", err=True)
    rows = rows_of(info, system, [system.sample()], "the sample")
    return ["--input-data", str(for_perf_analyzer(rows, folder / "sample.json"))]


def _keys_for(arguments: Sequence[str]) -> list[str]:
    """Return the keys for shared memory, if they are those of a Triton on this machine."""
    if not any(word.startswith("--shared-memory") for word in arguments):
        return []
    url = dict(pairwise(arguments)).get("-u", "localhost:8000")
    headers = api_keys.headers_for(url, grpc=_protocol(arguments) == "grpc")
    return [word for name, key in headers.items() for word in ("-H", f"{name}:{key}")]


def _protocol(arguments: Sequence[str]) -> str:
    return dict(pairwise(arguments)).get("-i", "http").lower()
