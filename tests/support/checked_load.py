"""Clients that ask the app all the time and look at every answer, and what became of what they asked."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from support.table import TableRow
from support.triton import some_models
from support.web_app import Site

from gourmet.systems.food11.contract import SYSTEM

CLIENTS = 16
PHOTOS = list(SYSTEM.examples(12, 5, (96, 80)))


@dataclass
class LoadOutcome:
    """What became of requests of a while, and when."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    seconds: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98]

    def rate(self, since: float, until: float) -> float:
        return sum(since <= at < until for at in self.at) / (until - since)


class Clients:
    """`CLIENTS` that ask the app all the time and look at every answer."""

    def __init__(self, site: Site, labels: list[str]) -> None:
        self.told = LoadOutcome()
        self._site, self._labels = site, labels
        self._ends = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)

    def __enter__(self) -> Clients:
        self._asking = [self._pool.submit(self._ask, number) for number in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._pool.shutdown()
        for each in self._asking:
            each.result()

    def _ask(self, number: int) -> None:
        while not self._ends.is_set():
            place, number, began = number % len(PHOTOS), number + 1, time.monotonic()
            reply = self._site.predict(PHOTOS[place])
            self.told.statuses[reply.status] += 1
            if reply.status == 200:
                self.told.seconds.append(time.monotonic() - began)
                self.told.at.append(time.monotonic())
                self.told.wrong += reply.json["label"] != self._labels[place]


def labels_of(site: Site) -> list[str]:
    return [site.predict(photo).json["label"] for photo in PHOTOS]


def asked_for(site: Site, labels: list[str], seconds: float) -> LoadOutcome:
    with Clients(site, labels) as clients:
        time.sleep(seconds)
    return clients.told


def row(tried: str, tolds: list[LoadOutcome], seen: str, survived: bool, **figures: float) -> TableRow:
    statuses = sum((each.statuses for each in tolds), Counter[int]())
    wrong = sum(each.wrong for each in tolds)
    return TableRow(
        tried=tried,
        requests=statuses.total(),
        answered=statuses[200],
        seen=seen,
        survived=survived and not wrong,
        refused={str(status): count for status, count in statuses.items() if status != 200},
        wrong={"another label": wrong} if wrong else {},
        figures={name.replace("_", " "): round(value, 3) for name, value in figures.items()},
    )


def one_thread(folder: Path, model: str, instances: int) -> Path:
    """The model with so many instances of a thread each."""
    config = some_models(folder, model) / model / "config.pbtxt"
    threads = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n'
    config.write_text(config.read_text().replace("count: 2", f"count: {instances}") + threads)
    return folder
