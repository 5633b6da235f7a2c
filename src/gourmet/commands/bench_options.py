"""Options that the measuring verbs share, and the output of a run."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gourmet.client.address import Address
from gourmet.commands.options import json_option, url_option
from gourmet.commands.values import FOLDER, POSITIVE
from gourmet.errors import printable
from gourmet.measure import report, results, validity
from gourmet.measure.task import Addresses, MeasureOptions
from gourmet.serving.run_file import stack_at

F = TypeVar("F", bound=Callable[..., Any])


def _share(_ctx: click.Context, _param: click.Parameter, percent: float) -> float:
    return percent / 100


def measuring(command: F) -> F:
    """Add the options of a measurement: the server, the windows, the limits, the folder and the output.

    The command gets a `target`, `options`, `save` and `as_json`.
    """

    @url_option()
    @click.option(
        "--grpc-url", help="Triton's gRPC address.  [default: the running stack's, or port 8001 of --url's]"
    )
    @click.option(
        "--app-url", help="Web app's address.  [default: the running stack's, or port 5000 of --url's]"
    )
    @click.option("--window", "window_s", default=1.0, help="Length of a window in seconds.")
    @click.option("--windows", default=5, type=click.IntRange(2), help="Number of windows of a measurement.")
    @click.option("--warm-up", "warm_up_s", default=1.0, help="Seconds of load before the first window.")
    @click.option("--attempts", default=3, type=POSITIVE, help="Attempts when a measurement is disturbed.")
    @click.option(
        "--steady",
        "steadiness",
        default=10.0,
        callback=_share,
        help="Allowed spread of the windows, in percent.",
    )
    @click.option(
        "--allow-errors",
        "errors_allowed",
        default=0.0,
        callback=_share,
        help="Allowed share of failed requests, in percent.",
    )
    @click.option("--save", type=FOLDER, help="Folder to save the run in.  [default: a new one under runs]")
    @json_option
    @functools.wraps(command)
    def measured(*args: Any, url: str, grpc_url: str | None, app_url: str | None, **values: Any) -> Any:
        stack, at = stack_at(url), Address.of(url)
        grpc_url = grpc_url or (stack.grpc_url if stack else str(at.grpc))
        app_url = app_url or (stack.web_url.removeprefix("http://") if stack else "") or f"{at.host}:5000"
        options = MeasureOptions(**{field.name: values.pop(field.name) for field in fields(MeasureOptions)})
        return command(*args, target=Addresses(url, grpc_url, app_url), options=options, **values)

    return measured  # type: ignore[return-value]


def finish(result: results.Bench, save: Path | None, as_json: bool) -> None:
    """Save and show a run; fail if a point was refused."""
    reasons = "; ".join(map(str, result.refused))
    if not result.points:
        raise validity.Untrusted(reasons)
    folder = report.save(result, save)
    if as_json:
        click.echo(results.as_json(result), nl=False)
    else:
        table(*report.figures(result.points))
        if any(point.stream for point in result.points):
            table(*report.streamed(result.points))
        click.echo(f"saved in {folder}: open {folder}/index.html")
    if result.refused:
        raise validity.Untrusted(reasons)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a table; the first column is aligned left, figures right."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for column, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if column == 0 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))  # not as rich's markup
    Console(width=None if sys.stdout.isatty() else 200).print(drawn)


def command_line() -> str:
    """Return the command that was typed, so that the reader of a report can repeat it."""
    words = sys.argv[1:] if Path(sys.argv[0]).name == "gourmet" else []
    return shlex.join(["gourmet", *words])
