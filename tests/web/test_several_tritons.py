"""The app in front of three real Tritons: one is ended, stands still, is slow, or lacks the model."""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.eventually import eventually
from support.proxy import Proxy
from support.triton import some_models, triton_server
from support.web_app import StartWeb, WebApp

from gourmet.client.triton import Triton
from gourmet.serving.processes import Child
from gourmet.serving.triton_server import TritonServer
from gourmet.systems.food11.contract import SYSTEM

pytestmark = pytest.mark.slow
MODEL = "food_classifier_onnx"
CLIENTS = 8


@dataclass(frozen=True)
class Several:
    servers: list[TritonServer]
    processes: list[Child]
    ways: list[Proxy]
    web: WebApp
    photos: list[bytes]
    labels: list[str]

    def answering(self) -> list[bool]:
        return list(self.web.request("GET", "/readyz").json["servers"].values())

    def is_whole(self) -> bool:
        return all(self.answering())


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, start: StartWeb) -> Iterator[Several]:
    with ExitStack() as running:
        servers, processes = [], []
        for number in range(3):
            server = triton_server(some_models(tmp_path_factory.mktemp(f"models{number}"), MODEL))
            running.callback(server.close)
            servers.append(server)
            processes.append(server.start())
        for server in servers:
            server.wait_until_live(180)
        ways = [running.enter_context(Proxy(server.options.http_url)) for server in servers]
        web = start(",".join(way.address for way in ways), FOOD11_MODEL_NAME=MODEL, REQUEST_DEADLINE_S="3")
        photos = list(SYSTEM.examples(12, 5, (96, 80)))
        labels = [web.predict(photo).json["label"] for photo in photos]
        assert len(set(labels)) > 1
        yield Several(servers, processes, ways, web, photos, labels)


@dataclass
class Told:
    """What became of requests: by status and version, wrong ones, and seconds of those that were answered."""

    statuses: Counter[int]
    versions: Counter[str]
    wrong: int
    seconds: list[float]

    @property
    def p99_s(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98]


def load(several: Several, requests: int = 400) -> Told:
    told = Told(Counter(), Counter(), 0, [])

    def ask(number: int) -> None:
        place = number % len(several.photos)
        began = time.monotonic()
        reply = several.web.predict(several.photos[place])
        told.statuses[reply.status] += 1
        if reply.status == 200:
            told.seconds.append(time.monotonic() - began)
            told.versions[reply.json["model"]["version"]] += 1
            told.wrong += reply.json["label"] != several.labels[place]

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(ask, range(requests)))
    return told


def test_all_are_asked_and_the_probe_names_them(several: Several) -> None:
    told = load(several)
    assert (told.statuses, told.wrong) == ({200: 400}, 0)
    for server in several.servers:
        with Triton.at(server.options.http_url) as triton:
            assert triton.total(MODEL).requests > 60
    assert several.web.request("GET", "/readyz").json["servers"] == {
        way.address: True for way in several.ways
    }
    assert all(count > 60 for count in counted(several, "seconds_count").values())


def counted(several: Several, name: str) -> dict[str, float]:
    """What the app counts of each server, by its configured address."""
    text = several.web.request("GET", "/metrics").body.decode()
    found = re.findall(rf'^web_server_{name}{{server="(\S+)"}} (\S+)$', text, re.M)
    assert {server for server, _ in found} <= {way.address for way in several.ways}
    return {server: float(count) for server, count in found}


def test_one_whose_connections_are_cut_and_refused_costs_nobody_an_answer(several: Several) -> None:
    with ThreadPoolExecutor(1) as pool:
        under_load = pool.submit(load, several)
        time.sleep(0.3)
        several.ways[1].refuses = True
        several.ways[1].cut()
        told = under_load.result()
    assert (told.statuses, told.wrong) == ({200: 400}, 0)
    assert counted(several, "failures_total").keys() == {several.ways[1].address}
    eventually(lambda: several.answering() == [True, False, True])
    several.ways[1].refuses = False
    eventually(several.is_whole, 10)


def test_of_one_that_stands_still_only_those_at_work_there_are_lost_and_not_in_silence(
    several: Several,
) -> None:
    with ThreadPoolExecutor(1) as pool:
        under_load = pool.submit(load, several, 600)
        time.sleep(0.3)
        os.kill(several.processes[2].pid, signal.SIGSTOP)
        told = under_load.result()
    os.kill(several.processes[2].pid, signal.SIGCONT)
    assert told.wrong == 0
    assert set(told.statuses) <= {200, 504}
    assert told.statuses[504] <= 2 * CLIENTS
    eventually(several.is_whole, 10)


def test_one_that_is_slow_is_asked_seldom(several: Several) -> None:
    calm = load(several)
    several.ways[0].delay_s = 0.2
    load(several, 100)  # until it is known
    told = load(several)
    several.ways[0].delay_s = 0.0
    assert (told.statuses, told.wrong) == ({200: 400}, 0)
    slow, slow_anyway = (sum(each > 0.2 for each in run.seconds) for run in (told, calm))
    assert slow - slow_anyway <= 60  # its share would be 133
    assert statistics.median(told.seconds) < 2 * statistics.median(calm.seconds) + 0.01


def test_one_without_the_model_leaves_the_model_to_the_others(several: Several) -> None:
    with Triton.at(several.servers[0].options.http_url) as triton, ThreadPoolExecutor(1) as pool:
        under_load = pool.submit(load, several)
        time.sleep(0.3)
        triton.unload(MODEL)
        told = under_load.result()
        assert (told.statuses, told.wrong) == ({200: 400}, 0)
        triton.load(MODEL)
    eventually(several.is_whole, 10)


def test_another_version_on_one_answers_by_its_own_number(several: Several) -> None:
    models = Path(several.servers[0].options.repositories[0]) / MODEL
    (models / "1").rename(models / "7")
    with Triton.at(several.servers[0].options.http_url) as triton:
        triton.load(MODEL)
        told = load(several)
        assert (told.statuses, told.wrong) == ({200: 400}, 0)
        assert set(told.versions) == {"1", "7"}
        (models / "7").rename(models / "1")
        triton.load(MODEL)
