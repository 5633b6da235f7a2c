"""The foundation's measurements as a page to read and as data to compute with."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gourmet.bench.foundation import Goal, Results

COMMAND = "gourmet bench foundation"


def write(results: Results, machine: dict[str, str], folder: Path, when: str) -> tuple[Path, Path]:
    """Write measurements.md and measurements.json into `folder`."""
    page, data = folder / "measurements.md", folder / "measurements.json"
    page.write_text(as_markdown(results, machine, when))
    data.write_text(json.dumps(as_data(results, machine, when), indent=1) + "\n")
    return page, data


def as_data(results: Results, machine: dict[str, str], when: str) -> dict[str, object]:
    """Everything that was measured, turn by turn."""
    return {
        "command": COMMAND,
        "when": when,
        "machine": machine,
        "label_agreement": results.label_agreement,
        "goals": [{**asdict(goal), "median": goal.median, "met": goal.met} for goal in results.goals()],
        "raw": [{str(arm.arm): arm.runs_per_s for arm in report.arms} for report in results.raw],
        "raw_ms": [report.single.mean_ms for report in results.raw],
        "arms": {arm: [asdict(measured) for measured in turns] for arm, turns in results.arms.items()},
    }


def as_markdown(results: Results, machine: dict[str, str], when: str) -> str:
    """The page, with the command that makes it again."""
    raw_rows = [
        f"| raw onnxruntime, {arm.arm} | {_over([r.arms[place].runs_per_s for r in results.raw], '.0f')} | "
        f"{_over([r.arms[place].p50_ms for r in results.raw], '.1f')} | "
        f"{_over([r.arms[place].p95_ms for r in results.raw], '.1f')} | |"
        for place, arm in enumerate(results.raw[0].arms)
    ]
    served_rows = [
        f"| {arm} | {_over([m.rows_per_s for m in turns], '.0f')} | "
        f"{_over([m.p50_ms for m in turns], '.1f')} | "
        f"{_over([m.p95_ms for m in turns], '.1f')} | {_split(turns[len(turns) // 2])} |"
        for arm, turns in results.arms.items()
    ]
    return _PAGE.format(
        when=when,
        command=COMMAND,
        machine="\n".join(f"- {name}: {value}" for name, value in machine.items()),
        turns=len(results.raw),
        agreement=f"{results.label_agreement:.0%}",
        goals="\n".join(_goal(goal) for goal in results.goals()),
        arms="\n".join([*raw_rows, *served_rows]),
    )


_PAGE = """\
# Measurements of the foundation

Measured {when} by `{command}`, which wrote this page; `measurements.json` beside it has every turn.

{machine}

Arms took {turns} turns, one after another in the same run. Figures are medians over the turns, with the
least and the most in brackets; ratios are taken turn by turn. The answers were checked first:
food_classifier and food_classifier_onnx gave the same label for every photo, and the reference lab's
model for {agreement} of them.

| goal | measured | wanted | |
|---|---|---|---|
{goals}

| arm | rows per second | p50 ms | p95 ms | mean ms: queue + input + infer + output + network |
|---|---|---|---|---|
{arms}

Arms of food_classifier and of the reference lab send 64 different drawn photos of 400×300 as raw JPEG;
those of the ONNX models send random tensors, `b` rows a request. `food_onnx_one_instance` is
food_classifier_onnx with one instance of one thread, `food_onnx_dynamic` is it with dynamic batching and no
queue delay, `food_classifier_one_by_one` is food_classifier without dynamic batching. The reference lab's
model is `benchmarks/models/food_reference_lab`.
"""


def _goal(goal: Goal) -> str:
    unit = goal.unit if goal.unit == "×" else f" {goal.unit}"
    wanted = f"{'at most' if goal.at_most else 'at least'} {goal.wanted:g}{unit}"
    met = "met" if goal.met else "not met"
    return f"| {goal.what} | {_over(goal.per_turn, '.2f')}{unit} | {wanted} | {met} |"


def _over(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def _split(measured: object) -> str:
    parts = ("queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms", "network_ms")
    return " + ".join(f"{getattr(measured, part):.1f}" for part in parts)
