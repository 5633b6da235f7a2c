"""perf_analyzer's CSV reports, as the notebook's cells leave them behind."""

from __future__ import annotations

import csv
from pathlib import Path

from gourmet.bench import perf_analyzer
from gourmet.bench.perf_analyzer import Load, Measurement, PerfAnalyzerError


def take(path: Path | str, *, batch: int = 1) -> Measurement:
    """The measurement in a report of one concurrency; the file is removed.

    So that the report of an earlier run cannot pass for that of a run that failed.
    """
    report = Path(path)
    try:
        text = report.read_text()
    except FileNotFoundError as exc:
        raise PerfAnalyzerError(
            f"there is no {report.name}: the perf_analyzer above gave up, in the words above. Run its cell "
            "again; if its windows differ too much, end what else uses this machine, or set "
            "GOURMET_LAB_WINDOWS to longer ones and restart the kernel"
        ) from exc
    report.unlink()
    rows = list(csv.DictReader(text.splitlines()))
    concurrency = int(rows[0]["Concurrency"]) if rows else 0
    return perf_analyzer.parse(text, Load("", "", concurrency=concurrency, batch=batch))
