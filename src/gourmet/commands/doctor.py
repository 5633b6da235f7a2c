"""`gourmet doctor`: what is wrong with this machine or the running stack, and what to do about it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from gourmet.commands.options import as_options, json_option, port_options, repositories_option, url_option
from gourmet.doctor import CHECKS, OF_THIS_MACHINE, Examined, Finding, examine
from gourmet.errors import echo, printable
from gourmet.stack.run_file import stack_at

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@repositories_option(found=True)
@url_option(
    "Triton's address; if given, it must answer. If it is not of a stack here, only this Triton is checked.  "
    "[default: the running stack's]",
    required=False,
)
@click.option("--host", default="127.0.0.1", help="Address whose ports to check.")
@port_options(found=True)
@json_option
def doctor(repositories: tuple[Path, ...], url: str | None, host: str, as_json: bool, **ports: int) -> None:
    """Check this machine and the running stack; print each problem with its next step.

    Ends with status 1 if anything fails. Nothing is changed and nothing is started.

    \b
    gourmet doctor
    gourmet doctor --url triton:8000
    """
    elsewhere = url is not None and not stack_at(url)
    left_out = (OF_THIS_MACHINE if elsewhere else ()) + (() if repositories else ("models", "manifests"))
    subject = Examined(
        repositories=tuple(path.resolve() for path in repositories),
        host=host,
        ports=as_options(ports),
        url=url or f"localhost:{ports['http_port']}",
        must_run=bool(url),
        environment=os.environ,
    )
    _print(examine(subject, left_out), as_json)


def _print(checked: Iterable[tuple[str, Finding]], as_json: bool) -> None:
    """Print the findings as they come; exit with status 1 if one is a failure."""
    width = max(map(len, CHECKS))
    findings = []
    for name, finding in checked:
        findings.append({"check": name, **vars(finding)})
        if not as_json:
            level = click.style(f"{finding.level:<4}", fg=_COLOURS[finding.level])
            words = printable(" ".join(str(finding).split()))
            click.echo(f"{level}  {name:<{width}}  {words}")  # noqa: TID251
    if as_json:
        echo(json.dumps(findings, indent=2))
    if any(finding["level"] == "fail" for finding in findings):
        raise SystemExit(1)
