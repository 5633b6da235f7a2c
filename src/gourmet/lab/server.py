"""The running Triton, as the notebook asks it: configs, answers, what it counted and was measured."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from gourmet.client.model_config import Config
from gourmet.errors import GourmetError
from gourmet.measure import stats, validity
from gourmet.measure.inputs import DataSource, for_perf_analyzer, rows_for
from gourmet.measure.results import Estimate, Latency, Split, Window
from gourmet.pictures.classifier import Floats
from gourmet.serving.connect import connect
from gourmet.serving.run_file import found_url
from gourmet.systems import registry

_SEED: Final = 5
# Windows in a row may differ by this many per cent, unless perf_analyzer is asked for another share.
_STABLE: Final = 30.0
# The columns of perf_analyzer's report, in microseconds there.
_COLUMNS: Final = (
    *("p50 latency", "p90 latency", "p95 latency", "p99 latency"),
    *("Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input"),
    *("Server Compute Infer", "Server Compute Output", "Client Recv"),
)
_PASS: Final = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec\. Avg latency: (\d+) usec")
# perf_analyzer's measurement is the mean of so many windows in a row.
_WINDOWS: Final = 3
_waiting: Final[list[subprocess.Popen[bytes]]] = []


@dataclass
class Executions:
    """How often the network ran during a block, by how many rows went through it at once."""

    by_rows: Mapping[int, int] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The rows of an average execution."""
        return sum(rows * count for rows, count in self.by_rows.items()) / max(1, sum(self.by_rows.values()))

    @property
    def largest(self) -> int:
        return max(self.by_rows, default=0)

    def __str__(self) -> str:
        each = (f"{count} of {rows} row{'s' * (rows > 1)}" for rows, count in self.by_rows.items())
        return ", ".join(each) or "none"


@dataclass
class RequestTally:
    """What became of requests that were sent one after another during a block."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Measurement:
    """What perf_analyzer measured of one load. The time that Triton does not account for is the network."""

    batch: int
    rows_per_s: float
    latency_ms: Latency
    split_ms: Split
    windows: tuple[Window, ...] = ()  # the last three; a report alone does not have them


def take(path: Path | str, *, batch: int = 1) -> Measurement:
    """The measurement in a perf_analyzer's report of one concurrency; the file is removed.

    So that the report of an earlier run cannot pass for that of a run that failed. What it said (`-v`) lies
    beside it as .txt: its windows have to agree as those of `gourmet bench` do.
    """
    report = Path(path)
    if not report.exists():
        raise GourmetError(
            f"no {report.name} found: the perf_analyzer above gave up, for the reason above. Run its cell "
            "again; if its windows differ too much, set GOURMET_LAB_WINDOWS to longer ones"
        )
    text = report.read_text()
    report.unlink()
    said = report.with_suffix(".txt")
    passes = _PASS.findall(said.read_text()) if said.exists() else []
    windows = tuple(Window(float(rate) / batch, int(us) / 1000) for rate, us in passes[-_WINDOWS:])
    validity.steady([window.requests_per_s for window in windows] or [1.0], 2 * _stable() / 100)
    return replace(_parsed(text, batch), windows=windows)


def _parsed(report: str, batch: int) -> Measurement:
    """The only row of perf_analyzer's CSV report."""
    try:
        (row,) = csv.DictReader(report.splitlines())
        rate, ms = float(row["Inferences/Second"]), {name: float(row[name]) / 1000 for name in _COLUMNS}
    except (KeyError, TypeError, ValueError) as exc:
        raise GourmetError(
            f"perf_analyzer's report has not one whole row ({exc}), as the pinned tritonclient's has: "
            "run `make setup`"
        ) from exc
    phases = ("Queue", "Compute Input", "Compute Infer", "Compute Output")
    queue, given, infer, output = (ms[f"Server {phase}"] for phase in phases)
    network = ms["Network+Server Send/Recv"] + ms["Client Send"] + ms["Client Recv"]
    split = Split(queue, given, infer, output, network)
    percentiles = (ms[f"p{share} latency"] for share in (50, 90, 95, 99))
    return Measurement(batch, rate, Latency(sum(vars(split).values()), *percentiles), split)


def _stable() -> float:
    asked = re.search(r"--stability-percentage[ =]([\d.]+)", os.environ.get("GOURMET_LAB_WINDOWS", ""))
    return float(asked[1]) if asked else _STABLE


def times(ours: Measurement, theirs: Measurement) -> Estimate:
    """How many times the throughput of one measurement that of another is, with its interval."""
    rates = ([m.batch * w.requests_per_s for w in m.windows] or [m.rows_per_s] for m in (ours, theirs))
    return stats.ratio(*rates)


@dataclass(frozen=True)
class Lab:
    """A Triton at `url` (host:port)."""

    url: str

    @classmethod
    def from_env(cls) -> Lab:
        """The Triton of TRITON_SERVER_URL, or else the one that runs here.

        Also has `!gourmet …` find this environment's command.
        """
        scripts = sysconfig.get_path("scripts")
        if scripts not in os.environ["PATH"].split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([scripts, os.environ["PATH"]])
        if not os.environ.get("TRITON_SERVER_URL"):
            # The commands of the notebook's cells ask the same one.
            os.environ["TRITON_SERVER_URL"] = found_url()
        return cls(os.environ["TRITON_SERVER_URL"])

    def version(self) -> str:
        with connect(self.url) as triton:
            return triton.version()

    def config(self, model: str) -> Config:
        with connect(self.url) as triton:
            return triton.config(model)

    def restored_at_the_end(self, repository: Path, *models: str) -> None:
        """Have these serve what their files say as soon as this kernel ends, stopped or killed."""
        command = [sys.executable, "-P", "-m", "gourmet.lab.restoring", self.url, str(repository), *models]
        # Its input ends with the kernel; in a session of its own, what ends the kernel does not end it.
        _waiting.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))

    def write_rows(self, model: str, path: Path | str, count: int) -> tuple[bytes, ...]:
        """Write `count` examples as perf_analyzer takes them for this model; return the examples."""
        with connect(self.url) as triton:
            rows = rows_for(triton.describe(model), DataSource(count, _SEED))
        for_perf_analyzer(rows, Path(path))
        return rows.examples

    def probabilities(self, model: str, pictures: Sequence[bytes], rows: int = 1) -> Floats:
        """What the model answers, [pictures, labels], asked `rows` pictures a request."""
        with connect(self.url, timeout_s=120) as triton:
            info = triton.describe(model)
            system, wanted = registry.classification(info.system), info.inputs[0]
            answers = []
            for first in range(0, len(pictures), rows):
                batch = [system.encode(each, wanted.datatype) for each in pictures[first : first + rows]]
                outputs = triton.infer(model, {wanted.name: np.concatenate(batch)}).outputs
                answers.append(system.probabilities(outputs, info))
        return np.concatenate(answers)

    @contextmanager
    def executions(self, model: str) -> Iterator[Executions]:
        """Fills what it yields, at the end of the block, with the difference of Triton's statistics."""
        with connect(self.url) as triton:
            seen, before = Executions(), triton.total(model)
            yield seen
            seen.by_rows = triton.total(model).since(before).executions_by_batch

    def asking(self, model: str, picture: bytes) -> AbstractContextManager[RequestTally]:
        """Sends the picture again and again, two requests at a time, until the block ends."""
        return asking_again(lambda: self.probabilities(model, [picture]), clients=2)


@contextmanager
def asking_again(ask: Callable[[], object], clients: int) -> Iterator[RequestTally]:
    """So many clients that call `ask` again and again until the block ends."""
    tally, enough = RequestTally(), threading.Event()

    def ask_again() -> int:
        answered = 0
        while not enough.is_set():
            try:
                ask()
                answered += 1
            except Exception as exc:
                tally.failed.append(str(exc))
        return answered

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_again) for _ in range(clients)]
        try:
            yield tally
        finally:
            enough.set()
            tally.answered = sum(client.result() for client in asking)
