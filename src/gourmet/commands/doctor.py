"""`gourmet doctor`: what is wrong with this machine or the running stack, and what to do about it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import click

from gourmet.commands.stack_options import port_options, repositories_option
from gourmet.doctor.examination import CHECKS, examine
from gourmet.doctor.findings import Subject
from gourmet.errors import UsageError

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


class Shape(click.ParamType[tuple[str, tuple[int, ...]]]):
    """A shape as perf_analyzer takes it."""

    name = "NAME:N,N,…"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        name, _, dims = str(value).rpartition(":")
        try:
            found = tuple(int(dim) for dim in dims.split(","))
        except ValueError:
            found = ()
        if not name or not found:
            self.fail(f"{value!r} is no shape: write it like input:3,224,224", param, ctx)
        return name, found


@click.command()
@click.option("-m", "--model", help="Look at this model's inputs, as perf_analyzer would.")
@click.option("--shape", "shapes", multiple=True, type=Shape(), help="As meant for perf_analyzer, with -m.")
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Also look at these weights of a training run."
)
@repositories_option
@click.option(
    "--url",
    envvar="TRITON_SERVER_URL",
    help="Triton's HTTP address; given, it must answer.  [default: localhost:8000]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address whose ports are looked at.")
@port_options
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(
    ctx: click.Context,
    model: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    weights: Path | None,
    repositories: tuple[Path, ...],
    url: str | None,
    host: str,
    port: int,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    as_json: bool,
) -> None:
    """Look at this machine and the running stack; say what is wrong and what to do, a line each.

    Ends with status 1 if anything fails. Nothing is changed and nothing is started.

    \b
    gourmet doctor
    gourmet doctor -m food_classifier_onnx --shape input:3,224,224
    """
    if shapes and not model:
        raise UsageError("--shape is about the inputs of a model: name it with -m")
    ports = {"--port": port, "--http-port": http_port, "--grpc-port": grpc_port}
    subject = Subject(
        repositories=tuple(path.resolve() for path in repositories),
        host=host,
        ports={**ports, "--metrics-port": metrics_port},
        url=url or f"localhost:{http_port}",
        must_run=url is not None,
        environment=os.environ,
        model=model,
        shapes=dict(shapes),
        weights=weights,
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
        ctx.exit(1)
