"""`gourmet evaluate`: accuracy, calibration and mistakes of trained weights, as a report."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gourmet.commands.progress import bar
from gourmet.systems import registry


@click.command()
@click.argument("system", type=click.Choice(registry.names()))
@click.option("--weights", type=click.Path(path_type=Path), help="[default: runs/SYSTEM/last.safetensors]")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Labelled examples. [default: those of training]"
)
@click.option("--limit", type=click.IntRange(min=1), help="Measure on so many examples of each part only.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def evaluate(
    system: str, weights: Path | None, data: Path | None, limit: int | None, device: str, as_json: bool
) -> None:
    """Measure SYSTEM's weights; the report and the calibration lie beside them."""
    from gourmet.deploying.evaluation import write_evaluation
    from gourmet.deploying.target import Calibration
    from gourmet.evaluating.evaluate import evaluate as measure
    from gourmet.evaluating.report import page
    from gourmet.training.files import written_aside
    from gourmet.training.memory import keep_freed_blocks
    from gourmet.training.run import data_of

    keep_freed_blocks()
    room = registry.room(system, "evaluate")
    weights = weights or Path("runs") / system / "last.safetensors"
    data = data or data_of(weights)
    network, _ = room.load(weights)
    answered = {}
    for part in room.parts(data):
        with bar(part) as tick:
            answered[part] = room.answers(network, data, part, limit=limit, device=device, tick=tick)
    found = measure(
        answered, room.LABELS, chosen_on="validation", wanted=room.WANTED_ACCURACY, views=room.VIEWS
    )
    report = weights.with_suffix(".report.html")
    with written_aside(report) as aside:
        aside.write_text(page(f"{system}: {weights.name}", found, room.LABELS), encoding="utf-8")
    write_evaluation(weights, Calibration(found.temperature, found.threshold), found.as_dict())
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
        return
    for name, part in found.parts.items():
        numbers = part.accuracy
        click.echo(
            f"{name}: balanced {numbers.balanced:.3f} ± {numbers.balanced_margin:.3f}, "
            f"top-1 {numbers.top1:.3f}, top-3 {numbers.top3:.3f}, {numbers.photos} photos"
        )
    click.echo(f"temperature {found.temperature:.3f}, threshold {found.threshold:.2f}; report in {report}")
