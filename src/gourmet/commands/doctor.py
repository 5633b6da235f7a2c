"""`gourmet doctor`: what is wrong with this machine or the running stack, and what to do about it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import click

from gourmet.commands.stack_options import as_options, port_options, repositories_option, url_option
from gourmet.commands.values import SHAPE
from gourmet.doctor.checks import CHECKS, examine
from gourmet.doctor.findings import Examined
from gourmet.errors import UsageError

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("-m", "--model", help="Look at this model's inputs, as perf_analyzer would.")
@click.option("--shape", "shapes", multiple=True, type=SHAPE, help="As meant for perf_analyzer, with -m.")
@repositories_option(found=True)
@url_option("Triton's HTTP address; given, it must answer.  [default: the running stack's]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address whose ports are looked at.")
@port_options(found=True)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(
    model: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    repositories: tuple[Path, ...],
    url: str | None,
    host: str,
    as_json: bool,
    **ports: int,
) -> None:
    """Look at this machine and the running stack; say what is wrong and what to do, a line each.

    Ends with status 1 if anything fails. Nothing is changed and nothing is started.

    \b
    gourmet doctor
    gourmet doctor -m food_classifier_onnx --shape input:3,224,224
    """
    if shapes and not model:
        raise UsageError("--shape is about the inputs of a model: name it with -m")
    subject = Examined(
        repositories=tuple(path.resolve() for path in repositories),
        host=host,
        ports=as_options(ports),
        url=url or f"localhost:{ports['http_port']}",
        must_run=url is not None,
        environment=os.environ,
        model=model,
        shapes=dict(shapes),
    )
    width = max(len(name) for name in CHECKS)
    found = []
    for name, finding in examine(subject):
        found.append({"check": name, **vars(finding)})
        if not as_json:
            level = click.style(f"{finding.level:<4}", fg=_COLOURS[finding.level])
            click.echo(f"{level}  {name:<{width}}  {' '.join(str(finding).split())}")
    if as_json:
        click.echo(json.dumps(found, indent=2))
    if any(finding["level"] == "fail" for finding in found):
        raise SystemExit(1)
