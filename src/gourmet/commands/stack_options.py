"""Where the stack is: options that every verb takes alike that starts it or looks at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from gourmet import repository

_PORTS: Final = {
    "--port": (5000, "Port of the web app."),
    "--http-port": (8000, "Triton's HTTP port."),
    "--grpc-port": (8001, "Triton's gRPC port."),
    "--metrics-port": (8002, "Triton's metrics port."),
}


def port_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --port, --http-port, --grpc-port and --metrics-port."""
    for option, (port, words) in reversed(_PORTS.items()):
        kind = click.IntRange(1, 65535)
        command = click.option(option, default=port, show_default=True, type=kind, help=words)(command)
    return command


repositories_option: Final = click.option(
    "--model-repository",
    "repositories",
    multiple=True,
    type=click.Path(path_type=Path),
    default=(repository.DEFAULT,),
    help="Folder of models; may be given several times.  [default: triton/models]",
)
