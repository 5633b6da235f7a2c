"""A run of `gourmet bench run`: a model, the rows it is asked, and one demand after another."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gourmet.bench import answers, machine, trust
from gourmet.bench.measure import measure
from gourmet.bench.results import Bench, Demand, Point, Refusal
from gourmet.bench.rows import Rows, rows_for
from gourmet.bench.task import Effort, Subject, Target, wire_for
from gourmet.bench.wire import Answer
from gourmet.errors import UsageError
from gourmet.serving.asking import model_index, triton

OnStep = Callable[[float, str], None]


@dataclass(frozen=True)
class Data:
    """Which rows to send, and where the expected answers come from."""

    count: int = 32
    seed: int = 5
    folder: Path | None = None
    size: tuple[int, int] = (400, 300)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    reference: Path | None = None
    tolerance: float = answers.TOLERANCE


def prepare(model: str, target: Target, data: Data, *, through_app: bool = False) -> Subject:
    """Make the rows for a served model and learn what each is answered by itself."""
    with triton(target.url) as client:
        index = model_index(client)
        if index.get(model, {}).get("state") != "READY":
            ready = ", ".join(sorted(name for name, entry in index.items() if entry.get("state") == "READY"))
            raise UsageError(f"Triton at {target.url} serves no model {model!r}; it serves {ready or 'none'}")
        config = client.get_model_config(model)
    rows = rows_for(
        config, count=data.count, seed=data.seed, data=data.folder, shapes=data.shapes, size=data.size
    )
    demand = Demand(model, through="app" if through_app else "triton")
    if through_app and not rows.pictures:
        raise UsageError(f"the web app takes photos, and there are none for {model}: it names no system")
    wire = wire_for(target, demand, rows)
    alone = answers.ask_alone(wire, len(rows), rows.batched or through_app)
    if through_app:
        _check_served_by(alone[0], model, target)
    batched = rows.batched or through_app
    if data.reference is None:
        return Subject(
            model, rows, answers.Answers(alone, batched, "each row was answered alone", data.tolerance)
        )
    expected = answers.of_onnx(data.reference, rows)
    right = answers.Answers(
        expected, batched, f"{data.reference.name} answers without a server", data.tolerance
    )
    right.check_alone(alone)
    return Subject(model, rows, right)


def _check_served_by(answer: Answer, model: str, target: Target) -> None:
    served = answer["model"].item().decode()
    if served != model:
        raise UsageError(
            f"the app at {target.app_url} asks {served} and not {model}: name that model, or start the app "
            f"with FOOD11_MODEL_NAME={model}"
        )


def run(
    subject: Subject,
    demands: Iterable[Demand],
    target: Target,
    effort: Effort,
    arm: str = "",
    on_step: OnStep = lambda _share, _words: None,
) -> tuple[list[Point], list[Refusal]]:
    """Measure one demand after another; a point that cannot be believed is refused and named.

    Wrong answers and errors are no matter of one point: they end the run.
    """
    wanted = list(demands)
    points: list[Point] = []
    refused: list[Refusal] = []
    for place, demand in enumerate(wanted):

        def on_time(share: float, place: int = place, demand: Demand = demand) -> None:
            on_step((place + share) / len(wanted), f"{arm or demand.model} {demand}")

        on_time(0.0)
        try:
            points.append(measure(subject, demand, target, effort, arm, on_time))
        except (trust.Disturbed, trust.ServerOverrun) as exc:
            refused.append(Refusal(f"{arm or demand.model} {demand}", str(exc).removeprefix(f"{demand}: ")))
    return points, refused


def bench(
    title: str,
    command: str,
    rows: Rows,
    points: Sequence[Point],
    refused: Sequence[Refusal] = (),
    *,
    about: str = "",
) -> Bench:
    """What was measured, with the machine it was measured on."""
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Bench(
        title, command, when, machine.about(), rows.about, tuple(points), tuple(refused), about=about
    )
