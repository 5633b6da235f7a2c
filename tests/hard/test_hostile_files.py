"""Tens of thousands of hostile files through the decoder: pixels or a reason, each cheap, none the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import decoding
from support.table import Keep, TableRow

from gourmet.pictures import decoders

FILES = int(os.environ.get("FUZZ_FILES", "46000"))
# At the limit a decoder is ended, and what is in front of that adds little.
MAX_CPU_S = decoders.CPU_S + 0.5
MAX_MB = 300.0


def decode(*files: str) -> list[dict[str, Any]]:
    """Return the results of decoding.py for these files; a dead process is a result too."""
    ran = subprocess.run(
        [sys.executable, "-P", decoding.__file__, *files],
        env={**os.environ, "PYTHONPATH": str(Path(decoding.__file__).parents[1])},
        cwd=tempfile.gettempdir(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # libtiff's complaints
        text=True,
        timeout=3000,
        check=False,
    )
    assert ran.returncode == 0, f"ended with {ran.returncode} after {ran.stdout[-2000:]}"
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_files_made_expensive_to_decode(table: Keep) -> None:
    costs = decode("bombs")
    table(
        _row("files made expensive to decode, each alone", Counter(cost["result"] for cost in costs), costs)
    )


@pytest.mark.timeout(3600)
def test_generated_and_mutated_files(table: Keep) -> None:
    step = 5000  # a process for each, so that growth would show in one and not in all
    ends = [min(first + step, FILES) for first in range(0, FILES, step)]
    runs = [decode(str(end - (end - 1) % step - 1), str(end)) for end in ends]
    results = sum((Counter(run[-1]["results"]) for run in runs), Counter[str]())
    bad = [result for run in runs for result in run[:-1]]
    assert results.total() == FILES
    table(_row("hostile files through the decoder", results, [run[-1] for run in runs], bad))


def _too_expensive(cost: dict[str, Any]) -> bool:
    return cost["cpu_s"] > MAX_CPU_S or cost["peak_mb"] > MAX_MB


def _row(
    tried: str, results: Counter[str], costs: list[dict[str, Any]], bad: list[dict[str, Any]] | None = None
) -> TableRow:
    broke = {why: count for why, count in results.items() if why.startswith("BROKE")}
    too_expensive = [cost for cost in costs if _too_expensive(cost)]
    return TableRow(
        tried=tried,
        requests=results.total(),
        answered=results["pixels"],
        refused={why: count for why, count in results.items() if why != "pixels" and why not in broke},
        wrong=broke | {json.dumps(cost): 1 for cost in [*too_expensive, *(bad or ())]},
        seen="pixels, or the reason why not, for every file",
        survived=not (broke or too_expensive or bad),
        figures={
            "processor seconds at most": max(cost["cpu_s"] for cost in costs),
            "megabytes at most": max(cost["peak_mb"] for cost in costs),
        },
    )
