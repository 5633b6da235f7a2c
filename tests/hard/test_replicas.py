"""Three Tritons behind the app: their pace against one with as many instances, and beside one that is killed
or slow.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.proxy import Proxy
from support.table import Keep, Row
from support.triton import some_models, triton_server
from support.up import Up
from support.web_app import Site, StartWeb

from gourmet.measure.stats import ratio
from gourmet.systems.food11.contract import SYSTEM

MODEL = "food_classifier_onnx"
CLIENTS = 16
TURN_S = 6.0
TURNS = 5
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


def row(tried: str, tolds: list[LoadOutcome], seen: str, survived: bool, **figures: float) -> Row:
    statuses = sum((each.statuses for each in tolds), Counter[int]())
    wrong = sum(each.wrong for each in tolds)
    return Row(
        tried=tried,
        requests=statuses.total(),
        answered=statuses[200],
        seen=seen,
        survived=survived and not wrong,
        refused={str(status): count for status, count in statuses.items() if status != 200},
        wrong={"another label": wrong} if wrong else {},
        figures={name.replace("_", " "): round(value, 3) for name, value in figures.items()},
    )


def one_thread(folder: Path, instances: int) -> Path:
    """The model with so many instances of a thread each."""
    config = some_models(folder, MODEL) / MODEL / "config.pbtxt"
    threads = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }\n'
    config.write_text(config.read_text().replace("count: 2", f"count: {instances}") + threads)
    return folder


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, list[Proxy | str]]]:
    """Addresses of three Tritons with an instance each, and of one with three."""
    with ExitStack() as running:
        found: dict[int, list[Proxy | str]] = {}
        for count in (3, 1):
            servers = []
            for number in range(count):
                folder = one_thread(tmp_path_factory.mktemp(f"models{count}{number}"), 3 // count)
                servers.append(running.enter_context(triton_server(folder)))
                servers[-1].wait_until_live(180)
            found[count] = [each.options.http_url for each in servers]
        yield found


def test_three_keep_the_pace_of_one_with_as_many_instances(
    ways: dict[int, list[str]], start: StartWeb, table: Keep
) -> None:
    several, single = (
        start(",".join(ways[count]), FOOD11_MODEL_NAME=MODEL, MAX_AT_WORK="8") for count in (3, 1)
    )
    labels = labels_of(single)
    assert labels_of(several) == labels
    for each in (several, single):
        asked_for(each, labels, 2.0)
    rates: tuple[list[float], list[float]] = ([], [])
    tolds = []
    for turn in range(TURNS):
        for which in ((0, 1), (1, 0))[turn % 2]:
            tolds.append(asked_for((several, single)[which], labels, TURN_S))
            rates[which].append(len(tolds[-1].at) / TURN_S)
    times = ratio(*rates)
    of_three, of_one = map(statistics.fmean, rates)
    table(
        row(
            "three Tritons against one with as many instances",
            tolds,
            f"{of_three:.0f} photos a second against {of_one:.0f}",
            times.value >= 0.9,
            times=times.value,
            low=times.low or 0.0,
            high=times.high or 0.0,
        )
    )


def test_one_that_is_slow_changes_little_for_all(
    ways: dict[int, list[str]], start: StartWeb, table: Keep
) -> None:
    with ExitStack() as running:
        proxies = [running.enter_context(Proxy(address)) for address in ways[3]]
        web = start(",".join(each.address for each in proxies), FOOD11_MODEL_NAME=MODEL)
        labels = labels_of(web)
        asked_for(web, labels, 2.0)
        calm, slow = [], []
        for _ in range(TURNS):
            calm.append(asked_for(web, labels, TURN_S))
            proxies[0].delay_s = 0.1  # on the way there and on the way back
            asked_for(web, labels, 1.0)
            slow.append(asked_for(web, labels, TURN_S))
            proxies[0].delay_s = 0.0
            asked_for(web, labels, 1.0)
    before, beside = (statistics.median(each.p99_s for each in tolds) for tolds in (calm, slow))
    table(
        row(
            "one of three Tritons is slow by 200 ms",
            [*calm, *slow],
            f"p99 {1000 * beside:.0f} ms against {1000 * before:.0f}",
            beside <= 1.5 * before,
            times=beside / before,
        )
    )


def test_one_of_three_that_is_killed_is_back_at_full_pace_within_seconds(tmp_path: Path, table: Keep) -> None:
    (tmp_path / "tmp").mkdir()
    models = one_thread(tmp_path / "models", 1)
    env = {SYSTEM.model_variable: MODEL}
    up = Up("--replicas", "3", "--model-repository", str(models), tmp=tmp_path / "tmp", env=env)
    try:
        up.wait_for("the page http://127.0.0.1:", 180)
        site = Site(up.port)
        labels = labels_of(site)
        asked_for(site, labels, 3.0)
        with Clients(site, labels) as clients:
            began = time.monotonic()
            time.sleep(8)
            killed = time.monotonic()
            os.kill(up.triton_pid(), signal.SIGKILL)
            while not all(site.request("GET", "/readyz").json["servers"].values()) or (
                time.monotonic() < killed + 1
            ):
                time.sleep(0.1)
            back = time.monotonic()
            time.sleep(13)
        before, after = clients.told.rate(began, killed), clients.told.rate(back + 5, back + 13)
        meanwhile = clients.told.rate(killed, back)
    finally:
        if up.process.poll() is None:
            up.stop()
    refused = clients.told.statuses.total() - clients.told.statuses[200]
    table(
        row(
            "one of three Tritons is killed under load",
            [clients.told],
            f"{before:.0f} photos a second, {meanwhile:.0f} while it was away, {after:.0f} from 5 s after",
            refused <= 0.005 * clients.told.statuses.total() and after >= 0.9 * before,
            away_s=back - killed,
            times=after / before,
        )
    )
