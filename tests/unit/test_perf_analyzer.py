"""perf_analyzer as a function: the command line of a load, and its report read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gourmet.bench import perf_analyzer
from gourmet.bench.perf_analyzer import Load, PerfAnalyzerError

# As the real program wrote it.
REPORT = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "2,199.5,68,413,11,12,161,33,1,400,979,1651,9834\n"
)


def test_a_report_is_read_in_milliseconds_and_rows() -> None:
    got = perf_analyzer.parse(REPORT, Load("m", "localhost:8000", concurrency=2, batch=4))
    assert (got.concurrency, got.batch, got.rows_per_s, got.requests_per_s) == (2, 4, 199.5, 49.875)
    assert (got.p50_ms, got.p90_ms, got.p95_ms, got.p99_ms) == (0.4, 0.979, 1.651, 9.834)
    assert (got.client_send_ms, got.network_ms, got.client_receive_ms) == (0.068, 0.413, 0.001)
    assert got.server_ms == pytest.approx(0.011 + 0.012 + 0.161 + 0.033)


@pytest.mark.parametrize("report", ["", REPORT.splitlines()[0], REPORT.replace("Server Queue", "Queue")])
def test_a_report_of_another_form_is_refused(report: str) -> None:
    with pytest.raises(PerfAnalyzerError, match="report has"):
        perf_analyzer.parse(report, Load("m", "localhost:8000"))


@pytest.mark.parametrize(
    ("load", "holds"),
    [
        (Load("m", "h:1", "grpc", concurrency=3, batch=2), "-m m -u h:1 -i grpc -b 2 --concurrency-range 3"),
        (Load("m", "h:1", shapes={"input": (3, 224, 224), "b": [1]}), "--shape input:3,224,224 --shape b:1"),
        (Load("m", "h:1", input_data=Path("/data/input.json")), "--input-data /data/input.json"),
        (Load("m", "h:1", shared_memory=True), "--shared-memory system"),
        (Load("m", "h:1", window_ms=700, max_windows=4), "--measurement-interval 700 --max-trials 4"),
        (
            Load("m", "h:1", window_requests=50),
            "--measurement-mode count_windows --measurement-request-count 50",
        ),
    ],
)
def test_a_load_becomes_a_command_line(load: Load, holds: str) -> None:
    assert f" {holds} " in f" {' '.join(perf_analyzer.arguments(load))} "
