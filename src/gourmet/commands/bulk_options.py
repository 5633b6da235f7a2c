"""Options of the verbs that answer many inputs: through what, and where the work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gourmet.commands.options import repositories_option

if TYPE_CHECKING:
    from gourmet.bulk.asked_model import AskedModel

Command = TypeVar("Command", bound=Callable[..., Any])


def bulk_options(command: Command) -> Command:
    """Add --via, --engine and --model-repository."""
    for option in (
        repositories_option(found=True),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Work on this machine, or on a Ray cluster.",
        ),
        click.option(
            "--via",
            type=click.Choice(["triton", "file"]),
            default="triton",
            show_default=True,
            help="Ask the model in Triton, or open its file, without a Triton.",
        ),
    ):
        command = option(command)
    return command


def asked_model(model: str, url: str, via: str, repositories: Iterable[Path], timeout_s: float) -> AskedModel:
    from gourmet.bulk.asked_model import AskedModel

    folder = ""
    if via == "file":
        from gourmet.bulk.model_file import folder_of

        folder = str(folder_of(model, repositories))
    return AskedModel(model, url, folder, timeout_s)
