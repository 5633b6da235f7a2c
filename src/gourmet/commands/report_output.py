"""Write the report of a check to a terminal, a JSON file or a page, and set the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gourmet.commands.values import PATH
from gourmet.errors import GourmetError, UsageError, printable

if TYPE_CHECKING:  # which would import numpy for --help
    from gourmet.tasks.checking import CheckReport

Command = TypeVar("Command", bound=Callable[..., Any])


class Stopped(GourmetError):
    """Ctrl-C stopped a check before its end."""

    exit_code = 130


def report_options(command: Command) -> Command:
    """Add --json and --out."""
    page = click.option("--out", type=PATH, help="Write a page: FILE.html, or a folder for MODEL.html.")
    numbers = click.option(
        "--json", "json_to", metavar="FILE", help="Write the numbers as JSON; `-` prints them instead."
    )
    return numbers(page(command))


def page_path(out: Path | None, model: str) -> Path | None:
    """Return the file of the page of --out."""
    if out and out.suffix not in ("", ".html"):
        raise UsageError(f"--out {out} is not a page: name a folder, or a file that ends in .html")
    return out / f"{model.replace('/', '-')}.check.html" if out and not out.suffix else out


def write_json(numbers: dict[str, Any], json_to: str) -> None:
    """Write into the file of --json, or to the terminal for `-`."""
    text = json.dumps(numbers, indent=2)
    click.echo(text) if json_to == "-" else Path(json_to).write_text(text + "\n", encoding="utf-8")


def give(report: CheckReport, json_to: str | None, page: Path | None) -> None:
    """Print and write the report; raise Stopped after Ctrl-C, or GourmetError if it has faults."""
    from gourmet.runtime.files import write_whole

    if json_to:
        write_json(report.as_dict(), json_to)
    if json_to != "-":
        click.echo(printable(report.summary()))  # it has other people's names and texts
    if page:
        write_whole(page, report.page())
        click.echo(f"page in {page}", err=True)
    if report.stopped:
        raise Stopped(f"stopped after {report.progress()}")
    if faults := report.faults():
        raise GourmetError("\n       ".join(faults))
