"""`gourmet deploy`: trained weights into the model repository, through the gate."""

from __future__ import annotations

from pathlib import Path

import click

from gourmet.commands.progress import bar
from gourmet.errors import UsageError
from gourmet.repository import DEFAULT
from gourmet.systems import registry


@click.command()
@click.argument("system", type=click.Choice(registry.names()))
@click.option("--format", "form", required=True, help="Which of the system's models; `all` for every one.")
@click.option(
    "--to", "repository", type=click.Path(path_type=Path), default=DEFAULT, help="Model repository."
)
@click.option("--weights", type=click.Path(path_type=Path), help="[default: runs/SYSTEM/last.safetensors]")
@click.option("--data", type=click.Path(path_type=Path), help="Real photos. [default: those of training]")
@click.option(
    "--version", "number", type=click.IntRange(min=1), help="Replace this one. [default: a new one]"
)
@click.option("--url", help="Triton's HTTP address, to switch a running server over without a pause.")
def deploy(
    system: str,
    form: str,
    repository: Path,
    weights: Path | None,
    data: Path | None,
    number: int | None,
    url: str | None,
) -> None:
    """Export SYSTEM's weights into the model repository, unless the result answers differently."""
    from gourmet.deploying import deploy as deploying
    from gourmet.deploying import live
    from gourmet.deploying.gate import table
    from gourmet.training.run import data_of

    room = registry.room(system, "export")
    if form not in (*room.TARGETS, "all"):
        raise UsageError(f"--format {form} is none of {', '.join((*room.TARGETS, 'all'))}")
    weights = weights or Path("runs") / system / "last.safetensors"
    with bar("reading") as tick:
        photos = deploying.Photos(*room.photos(data or data_of(weights), tick))
    for name in room.TARGETS if form == "all" else (form,):
        target = room.TARGETS[name]
        deployed = deploying.deploy(room, target, weights, repository, photos, number)
        if url:
            live.load_or_roll_back(url, deployed.folder.parent)
        click.echo(f"{deployed.folder}\n{table(deployed.checks)}")
