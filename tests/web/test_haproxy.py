"""HAProxy, as we configure it, in front of three real Tritons and two web apps: no photo stays unanswered."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest
from support.accounting import ANSWERED, KnownPhoto, PhotoLoad, learn
from support.eventually import eventually
from support.haproxy import Haproxy
from support.triton import some_models, triton_server
from support.web_app import StartWeb

from gourmet.stack.processes import Child
from gourmet.stack.triton_server import TritonServer
from gourmet.systems.food11.contract import SYSTEM
from gourmet.triton_client.triton import Triton

pytestmark = pytest.mark.slow
MODEL = "food_classifier"  # which is sent the photo as it is
TEXTS = ("translator", "translator_stream")
CLIENTS = 8


@dataclass
class Fleet:
    """The web apps and Tritons behind HAProxy."""

    haproxy: Haproxy
    tritons: list[TritonServer]
    processes: list[Child]
    photos: list[KnownPhoto]

    def is_whole(self) -> bool:
        return all(self.haproxy.are_up().values())

    def is_down(self) -> bool:
        """Return True once HAProxy has marked the first Triton as down."""
        return not self.haproxy.are_up()["triton/triton1"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, start: StartWeb) -> Iterator[Fleet]:
    with ExitStack() as running:
        tritons, processes = [], []
        for number, models in enumerate(((MODEL, *TEXTS), (MODEL, *TEXTS), (MODEL,))):
            server = triton_server(some_models(tmp_path_factory.mktemp(f"models{number}"), *models))
            running.callback(server.close)
            tritons.append(server)
            processes.append(server.start())
        for server in tritons:
            server.wait_until_live(180)
        haproxy = Haproxy(tmp_path_factory.mktemp("haproxy") / "log")
        settings = {"TRITON_GRPC_URL": haproxy.grpc, "TRUSTED_PROXIES": "1"}
        webs = [start(haproxy.triton, WEB_CONCURRENCY="1", **settings) for _ in range(2)]
        haproxy.start([(backend.options.http_url, backend.options.grpc_url) for backend in tritons], webs)
        running.callback(haproxy.stop)
        fleet = Fleet(haproxy, tritons, processes, [])
        eventually(lambda: len(haproxy.are_up()) >= 5 and fleet.is_whole(), 60)
        fleet.photos = learn(haproxy.url, SYSTEM.examples(12, 5, (96, 80)))
        yield fleet


def test_texts_and_streams_reach_a_triton_that_has_their_models(fleet: Fleet) -> None:
    body = json.dumps({"text": "Я люблю чай.", "stream": True})
    reply = fleet.haproxy.request("POST", "/api/v1/translate", body, Content_Type="application/json")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert b"I like tea." in reply.body
    assert fleet.haproxy.request("GET", "/metrics").status == 404


def kill(fleet: Fleet) -> None:
    os.kill(fleet.processes[0].pid, signal.SIGKILL)


def start_again(fleet: Fleet) -> None:
    fleet.tritons[0].stop()  # what is left of it
    fleet.processes[0] = fleet.tritons[0].start()


def pause(fleet: Fleet) -> None:
    os.kill(fleet.processes[0].pid, signal.SIGSTOP)


def go_on(fleet: Fleet) -> None:
    os.kill(fleet.processes[0].pid, signal.SIGCONT)


def unload(fleet: Fleet) -> None:
    with Triton(fleet.tritons[0].options.http_url) as triton:
        triton.unload(MODEL)


def load(fleet: Fleet) -> None:
    with Triton(fleet.tritons[0].options.http_url) as triton:
        triton.load(MODEL)


FAULTS = {"killed": (kill, start_again), "paused": (pause, go_on), "without the model": (unload, load)}


@pytest.mark.promise("operating: one of several Tritons dies, freezes or loses its model, behind HAProxy")
@pytest.mark.parametrize(("fault", "mend"), FAULTS.values(), ids=FAULTS)
def test_every_photo_is_answered_when_one_of_three_tritons_dies_under_load(
    fleet: Fleet, fault: Callable[[Fleet], None], mend: Callable[[Fleet], None]
) -> None:
    with PhotoLoad(fleet.haproxy.url, fleet.photos, at_once=CLIENTS) as clients:
        a_hundred_more(clients)
        fault(fleet)
        eventually(fleet.is_down, 60)
        a_hundred_more(clients)
        mend(fleet)
        eventually(fleet.is_whole, 120)
        a_hundred_more(clients)
    assert_all_answered(clients)


def test_a_reload_of_haproxy_loses_no_answer(fleet: Fleet) -> None:
    with PhotoLoad(fleet.haproxy.url, fleet.photos, at_once=CLIENTS) as clients:
        a_hundred_more(clients)
        fleet.haproxy.reload()
        a_hundred_more(clients)
    assert_all_answered(clients)


def test_an_open_stream_is_completed_when_its_web_app_stops(
    fleet: Fleet, start: StartWeb, tmp_path: Path
) -> None:
    web, haproxy = start(fleet.tritons[0].options.http_url, WEB_CONCURRENCY="1"), Haproxy(tmp_path / "log")
    text = json.dumps({"text": "Я люблю чай. " * 20, "stream": True})
    with ExitStack() as running:
        running.callback(haproxy.stop)
        haproxy.start(webs=[web])
        eventually(lambda: haproxy.are_up()["web/web1"])
        client = running.enter_context(closing(HTTPConnection("127.0.0.1", haproxy.port, timeout=60)))
        client.request("POST", "/api/v1/translate", text, {"Content-Type": "application/json"})
        response = client.getresponse()
        answer = response.readline()
        running.callback(go_on, fleet)
        pause(fleet)  # the stream lasts until its web app is out of service
        web.process.send_signal(signal.SIGTERM)
        eventually(lambda: not haproxy.are_up()["web/web1"])
        go_on(fleet)
        answer += response.read()
    assert b"event: done" in answer
    eventually(fleet.is_whole)


def test_a_school_behind_one_address_is_answered(fleet: Fleet) -> None:
    with ExitStack() as kept:
        for _ in range(600):
            client = kept.enter_context(closing(HTTPConnection("127.0.0.1", fleet.haproxy.port, timeout=60)))
            client.request("GET", "/metrics")  # which HAProxy answers itself
            answer = client.getresponse()
            answer.read()
            assert answer.status == 404


def a_hundred_more(clients: PhotoLoad) -> None:
    since = clients.account().count(ANSWERED)
    eventually(lambda: clients.account().count(ANSWERED) > since + 100, 60)


def assert_all_answered(clients: PhotoLoad) -> None:
    reasons = Counter(attempt.reason for attempt in clients.account().attempts)
    assert reasons.keys() == {"200"}, reasons
