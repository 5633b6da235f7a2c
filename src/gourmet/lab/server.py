"""The running Triton, as the notebook asks it: configs, answers, and what it counted meanwhile."""

from __future__ import annotations

import os
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.http as triton_http

from gourmet.bench import triton_counts
from gourmet.bench.rows import for_perf_analyzer, rows_for
from gourmet.bench.triton_counts import Counts
from gourmet.config_change import Config
from gourmet.serving.asking import triton
from gourmet.systems.food11 import contract
from gourmet.systems.instances import parameter

_SEED: Final = 5


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
class Asked:
    """What became of requests that were sent one after another during a block."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Lab:
    """A Triton at `url` (host:port)."""

    url: str

    @classmethod
    def from_env(cls) -> Lab:
        """The Triton of TRITON_SERVER_URL; also has `!gourmet …` find this environment's command."""
        scripts = sysconfig.get_path("scripts")
        if scripts not in os.environ["PATH"].split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([scripts, os.environ["PATH"]])
        # The commands of the notebook's cells ask the same one.
        return cls(os.environ.setdefault("TRITON_SERVER_URL", "localhost:8000"))

    def version(self) -> str:
        with triton(self.url) as client:
            about = client.get_server_metadata()
        return f"{about['name']} {about['version']}"

    def config(self, model: str) -> Config:
        """The config that serves now."""
        with triton(self.url) as client:
            return dict(client.get_model_config(model))

    def write_rows(self, model: str, path: Path | str, count: int) -> tuple[bytes, ...]:
        """Write `count` drawn photos as perf_analyzer takes them for this model; return the photos."""
        rows = rows_for(self.config(model), count=count, seed=_SEED)
        for_perf_analyzer(rows, Path(path))
        return rows.pictures

    def probabilities(self, model: str, pictures: Sequence[bytes], rows: int = 1) -> contract.Floats:
        """What the model answers, [pictures, 11], asked `rows` pictures a request."""
        with triton(self.url, timeout_s=120) as client:
            wanted = client.get_model_metadata(model)["inputs"][0]
            temperature = float(parameter(client.get_model_config(model), "temperature") or 1.0)
            answers = []
            for first in range(0, len(pictures), rows):
                batch = [contract.encode(each, wanted["datatype"]) for each in pictures[first : first + rows]]
                outputs = _infer(client, model, wanted, np.concatenate(batch))
                answers.append(contract.probabilities(outputs, temperature))
        return np.concatenate(answers)

    @contextmanager
    def executions(self, model: str) -> Iterator[Executions]:
        """Fills what it yields, at the end of the block, with the difference of Triton's statistics."""
        seen = Executions()
        before: Counts = triton_counts.look(self.url, model)
        yield seen
        during = triton_counts.look(self.url, model).since(before)
        seen.by_rows = {rows: count for rows, count in sorted(during.executions.items()) if count}

    @contextmanager
    def asking(self, model: str, picture: bytes) -> Iterator[Asked]:
        """Sends the picture again and again, two requests at a time, until the block ends."""
        asked, enough, lock = Asked(), threading.Event(), threading.Lock()

        def ask() -> None:
            while not enough.is_set():
                try:
                    self.probabilities(model, [picture])
                except Exception as exc:
                    with lock:
                        asked.failed.append(str(exc))
                else:
                    with lock:
                        asked.answered += 1

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield asked
        finally:
            enough.set()
            for thread in threads:
                thread.join()


def _infer(client: Any, model: str, wanted: Mapping[str, Any], values: Any) -> dict[str, Any]:
    tensor = triton_http.InferInput(wanted["name"], list(values.shape), wanted["datatype"])
    tensor.set_data_from_numpy(values)
    answer = client.infer(model, [tensor])
    return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}
