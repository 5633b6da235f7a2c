"""Clients that ask the app all the time and look at every answer, and what became of what they asked."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.repeating import Repeating
from support.table import TableRow
from support.triton import some_models
from support.web_app import Site

from gourmet.measure.stats import ratio
from gourmet.systems.food11.contract import SYSTEM

CLIENTS = 16
PHOTOS = list(SYSTEM.examples(12, 5, (96, 80)))
TURN_S = 6.0
TURNS = 5


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


class Clients(Repeating):
    """They ask the app all the time and look at every answer."""

    def __init__(self, site: Site, labels: list[str], count: int = CLIENTS) -> None:
        super().__init__(self._ask, count)
        self.outcome = LoadOutcome()
        self._site, self._labels = site, labels

    def _ask(self, client: int, turn: int) -> None:
        place, began = (client + turn) % len(PHOTOS), time.monotonic()
        reply = self._site.predict(PHOTOS[place])
        self.outcome.statuses[reply.status] += 1
        if reply.status == 200:
            self.outcome.seconds.append(time.monotonic() - began)
            self.outcome.at.append(time.monotonic())
            self.outcome.wrong += reply.json["label"] != self._labels[place]


def labels_of(site: Site) -> list[str]:
    return [site.predict(photo).json["label"] for photo in PHOTOS]


def asked_for(site: Site, labels: list[str], seconds: float) -> LoadOutcome:
    with Clients(site, labels) as clients:
        time.sleep(seconds)
    return clients.outcome


def row(tried: str, outcomes: list[LoadOutcome], seen: str, survived: bool, **figures: float) -> TableRow:
    statuses = sum((each.statuses for each in outcomes), Counter[int]())
    wrong = sum(each.wrong for each in outcomes)
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


def pace_row(tried: str, several: Site, single: Site, labels: list[str]) -> TableRow:
    """How three Tritons keep the pace of a single one, both asked in turns."""
    sites = (several, single)
    for each in sites:
        asked_for(each, labels, 2.0)
    rates: tuple[list[float], list[float]] = ([], [])
    outcomes = []
    for turn in range(TURNS):
        for which in ((0, 1), (1, 0))[turn % 2]:
            outcomes.append(asked_for(sites[which], labels, TURN_S))
            rates[which].append(len(outcomes[-1].at) / TURN_S)
    times = ratio(*rates)
    of_three, of_one = map(statistics.fmean, rates)
    return row(
        tried,
        outcomes,
        f"{of_three:.0f} photos a second against {of_one:.0f}",
        times.value >= 0.9,
        times=times.value,
        low=times.low or 0.0,
        high=times.high or 0.0,
    )


def one_thread(folder: Path, model: str, instances: int) -> Path:
    """The model with so many instances of a thread each."""
    config = some_models(folder, model) / model / "config.pbtxt"
    threads = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n'
    config.write_text(config.read_text().replace("count: 2", f"count: {instances}") + threads)
    return folder
