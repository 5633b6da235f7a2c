"""HAProxy, as we configure it, in front of three real Tritons and two web apps: no photo stays unanswered."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from support.checked_load import Clients, labels_of
from support.eventually import eventually
from support.haproxy import ABSENT, HAPROXY, Haproxy
from support.triton import some_models, triton_server
from support.web_app import StartWeb

from gourmet.client.triton import Triton
from gourmet.serving.processes import Child
from gourmet.serving.triton_server import TritonServer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAPROXY, reason=ABSENT)]
MODEL = "food_classifier"  # which is sent the photo as it is
TEXTS = ("translator", "translator_stream")
CLIENTS = 8


@dataclass
class Fleet:
    """What stands behind HAProxy."""

    haproxy: Haproxy
    tritons: list[TritonServer]
    processes: list[Child]
    labels: list[str]

    def is_whole(self) -> bool:
        return all(self.haproxy.are_up().values())

    def is_down(self) -> bool:
        """Whether HAProxy knows that the first Triton does not answer."""
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
        # On a machine with much other work an answer may take a while; here only its end counts.
        given = {"TRITON_GRPC_URL": haproxy.grpc, "TRUSTED_PROXIES": "1", "REQUEST_DEADLINE_S": "60"}
        webs = [start(haproxy.triton, WEB_CONCURRENCY="1", **given) for _ in range(2)]
        haproxy.start([(each.options.http_url, each.options.grpc_url) for each in tritons], webs)
        running.callback(haproxy.stop)
        fleet = Fleet(haproxy, tritons, processes, [])
        eventually(lambda: len(haproxy.are_up()) >= 5 and fleet.is_whole(), 60)
        fleet.labels = labels_of(haproxy)
        assert len(set(fleet.labels)) > 1
        yield fleet


def test_texts_and_streams_pass_also_to_a_triton_that_has_their_models(fleet: Fleet) -> None:
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


@pytest.mark.parametrize(("fault", "mend"), FAULTS.values(), ids=FAULTS)
def test_of_three_tritons_one_may_be_lost_under_load_and_every_photo_is_answered(
    fleet: Fleet, fault: Callable[[Fleet], None], mend: Callable[[Fleet], None]
) -> None:
    with Clients(fleet.haproxy, fleet.labels, CLIENTS) as clients:
        eventually(lambda: clients.outcome.statuses[200] > 100, 60)
        fault(fleet)
        eventually(fleet.is_down, 60)
        since = clients.outcome.statuses[200]
        eventually(lambda: clients.outcome.statuses[200] > since + 100, 60)
        mend(fleet)
        eventually(fleet.is_whole, 120)
        since = clients.outcome.statuses[200]
        eventually(lambda: clients.outcome.statuses[200] > since + 100, 60)
    outcome = clients.outcome
    assert (outcome.statuses.total() - outcome.statuses[200], outcome.wrong) == (0, 0), outcome.statuses


def test_a_reload_of_haproxy_costs_no_answer(fleet: Fleet) -> None:
    with Clients(fleet.haproxy, fleet.labels, CLIENTS) as clients:
        eventually(lambda: clients.outcome.statuses[200] > 100, 60)
        fleet.haproxy.reload()
        since = clients.outcome.statuses[200]
        eventually(lambda: clients.outcome.statuses[200] > since + 100, 60)
    assert clients.outcome.statuses.keys() == {200}
    assert not clients.outcome.wrong
