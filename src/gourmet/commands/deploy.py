"""`gourmet deploy`: trained weights into the model repository, through the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gourmet.commands.options import (
    alone_in,
    json_option,
    send_option,
    serving_url,
    to_option,
    trained_options,
    url_option,
)
from gourmet.commands.progress import bar
from gourmet.commands.values import POSITIVE
from gourmet.errors import UsageError, echo
from gourmet.repository.gate import Comparison, Deployment
from gourmet.repository.models import repository_of
from gourmet.served.manifest import facts
from gourmet.systems import registry
from gourmet.systems.parts import SystemParts


@click.command()
@click.argument("name", metavar="SYSTEM-OR-MODEL")
@click.option("--format", "form", default="all", show_default=True, help="Deploy this format, or all.")
@to_option
@trained_options
@click.option(
    "--checkpoint",
    metavar="FOLDER-OR-NAME",
    help="Deploy published weights, from a folder or by their public name.",
)
@click.option("--fp32", is_flag=True, help="Keep fp32 weights.")
@click.option("--force", is_flag=True, help="Deploy even if the served version is better.")
@click.option("--version", "number", type=POSITIVE, help="Replace this version.  [default: a new one]")
@url_option(
    "Load the new version into this Triton without a pause.  [default: the running stack, if it serves --to]",
    required=False,
)
@send_option
@json_option
def deploy(
    name: str,
    form: str,
    models: Path,
    weights: Path | None,
    checkpoint: str | None,
    data: Path | None,
    fp32: bool,
    force: bool,
    number: int | None,
    architecture: str,
    url: str | None,
    send: bool,
    as_json: bool,
) -> None:
    """Export a system's weights into the model repository, unless they are worse than the served ones.

    Compares them with the served version on held-out examples, and each exported file with its network.
    Exports all of the system's models, or the named one. --weights are a file of `gourmet train` or `gourmet
    learn-more`, a plain .pth or safetensors (--architecture), or the .onnx of a system that `gourmet new`
    made. Weights that others trained are compared on made-up pictures, unless --data names some.
    """
    from gourmet.commands.running import install
    from gourmet.learning import learn_more
    from gourmet.stack.overview import owner_of
    from gourmet.systems.own_folder import copies_of_shipped

    system = name if name in registry.names() else owner_of(repository_of(name) / name)[0]
    system = system or owner_of(models / name)[0]
    if not system:
        raise UsageError(
            f"{name!r} is neither a system nor a model of {models}: systems are {', '.join(registry.names())}"
        )
    click.get_current_context().with_resource(alone_in(models))
    click.get_current_context().with_resource(copies_of_shipped(system, models))
    if weights and weights.suffix == learn_more.SUFFIX:
        deployment = learn_more.deployment(registry.classification(system), weights, models)
    else:
        deployment = of_weights(system, form, weights, checkpoint, data, architecture, fp32=fp32)
    chosen_forms = list(deployment.targets) if form == "all" else [form]
    if form != "all" and form not in deployment.targets:
        raise UsageError(
            f"--format {form} cannot be made of these weights; {', '.join(deployment.targets)} can"
        )
    if name != system:
        chosen_forms = [chosen for chosen in chosen_forms if deployment.targets[chosen].model == name]
    if not chosen_forms:
        raise UsageError(
            f"`gourmet deploy {system} --format {form}` does not make {name}: leave --format out"
        )
    triton, shown, rows = url or serving_url(models), list[str](), list[dict[str, Any]]()

    def show(comparison: Comparison) -> None:
        if comparison.text() not in shown:
            echo(f"{comparison.model}: {comparison.text()}", err=as_json)
        shown.append(comparison.text())
        if comparison.lost and force:
            echo(f"--force: {comparison.model} is deployed and loses {comparison.losses()}", err=as_json)

    for chosen in chosen_forms:
        with bar(f"exporting {chosen}") as tick:
            how: dict[str, Any] = {"number": number, "force": force, "show": show, "tick": tick}
            folder, report = install(deployment, chosen, models, triton, send=send, **how)
        if as_json:
            about = facts(folder)
            row = {"model": about["model"], "version": int(folder.name), "folder": str(folder)}
            compared = about.get("compared")
            rows.append({**row, "serves": bool(triton), "gate": about["gate"], "compared": compared})
        else:
            echo(f"{folder}\n{report}")
    if as_json:
        echo(json.dumps(rows, indent=2))


def of_weights(
    system: str,
    form: str,
    weights: Path | None,
    checkpoint: str | None,
    data: Path | None,
    architecture: str,
    *,
    fp32: bool,
) -> Deployment:
    """Open trained weights, or a published checkpoint, for deployment."""
    from gourmet.repository.gate import Quantizing
    from gourmet.training.run import data_of

    export = SystemParts(system).export
    formats = (*export.formats, "all")
    if form not in formats:
        raise UsageError(f"--format {form} is not a format of {system}; there are {', '.join(formats)}")
    if fp32:
        if not isinstance(export, Quantizing):
            raise UsageError(f"--fp32 does not apply to {system}: its formats say what is rounded")
        export = export.in_fp32()
    if checkpoint and weights:
        raise UsageError("give --checkpoint or --weights, not both")
    chosen = weights or Path("runs") / system / "last.safetensors"
    if checkpoint:
        chosen = export.find(checkpoint)
    # Other people's weights come without their training data.
    data = data or (None if architecture or checkpoint or chosen.suffix == ".onnx" else data_of(chosen))
    with bar("reading") as tick:
        return export.open(chosen, data, tick, architecture=architecture)
