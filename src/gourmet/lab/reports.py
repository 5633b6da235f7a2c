"""perf_analyzer's CSV reports, as the notebook's cells leave them behind."""

from __future__ import annotations

from pathlib import Path

from gourmet.measure import perf_analyzer
from gourmet.measure.perf_analyzer import Measurement, PerfAnalyzerError


def take(path: Path | str, *, batch: int = 1) -> Measurement:
    """The measurement in a report of one concurrency; the file is removed.

    So that the report of an earlier run cannot pass for that of a run that failed.
    """
    report = Path(path)
    try:
        text = report.read_text()
    except FileNotFoundError as exc:
        raise PerfAnalyzerError(
            f"no {report.name} found: the perf_analyzer above gave up, for the reason above. Run its cell "
            "again; if its windows differ too much, end what else uses this machine, or set "
            "GOURMET_LAB_WINDOWS to longer ones and restart the kernel"
        ) from exc
    report.unlink()
    return perf_analyzer.parse(text, batch)
