"""The engines as a part of docs/generation.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from generation.engines import TOGETHER, WANTED, EngineResult, EngineRun
from gourmet.reports.table import markdown
from harness.report import DocsPart, about_line

PART: Final = DocsPart("gourmet bench generation engines", "generation.md", "Generation", "to here: engines")
HEADINGS: Final = (
    *("engine", "form", "threads", "MiB", "sentences/s, one alone", f"{TOGETHER} at a time"),
    *("the network's own words", "same words as alone"),
)


def rows(run: EngineRun) -> list[tuple[str, ...]]:
    return [_row(result, run.best) for result in run.results]


def verdict(run: EngineRun) -> str:
    wanted = ", ".join(f"{form} {100 * share:g} %" for form, share in WANTED.items())
    if run.best is None:
        return f"No engine has the network's words often enough ({wanted})."
    return (
        f"The fastest of those that have the network's words often enough ({wanted}): {run.best.engine}, "
        f"{run.best.form}, threads: {run.best.threads}."
    )


def write(run: EngineRun, folder: Path) -> Path:
    words = (
        f"{about_line(PART.command)}; {run.about}.\n\n"
        f"{run.sentences} sentences of the test split, {run.tokens:.1f} pieces an answer. {verdict(run)}\n\n"
    )
    return PART.write(folder, words + markdown(HEADINGS, rows(run)))[0]


def _row(result: EngineResult, best: EngineResult | None) -> tuple[str, ...]:
    return (
        f"**{result.engine}**" if result is best else result.engine,
        result.form,
        str(result.threads),
        f"{result.mebibytes:.1f}",
        f"{result.alone_per_s:.1f}",
        f"{result.together_per_s:.1f}",
        f"{100 * result.agrees:.1f} %" + ("" if result.ships else " (too few)"),
        f"{100 * result.as_alone:.1f} %",
    )
