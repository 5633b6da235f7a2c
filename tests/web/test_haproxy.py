"""HAProxy, as we configure it, in front of two real Tritons and two web apps."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.checked_load import Clients, labels_of
from support.eventually import eventually
from support.haproxy import ABSENT, HAPROXY, Haproxy
from support.triton import some_models, triton_server
from support.web_app import StartWeb

from gourmet.client.triton import Triton
from gourmet.serving.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAPROXY, reason=ABSENT)]
MODELS = ("food_classifier", "translator", "translator_stream")


@pytest.fixture(scope="module")
def behind(
    tmp_path_factory: pytest.TempPathFactory, start: StartWeb
) -> Iterator[tuple[Haproxy, list[Child], list[str]]]:
    with ExitStack() as running:
        haproxy = Haproxy(tmp_path_factory.mktemp("haproxy") / "log")
        processes, servers = [], []
        for number in (1, 2):
            servers.append(triton_server(some_models(tmp_path_factory.mktemp(f"models{number}"), *MODELS)))
            running.callback(servers[-1].close)
            processes.append(servers[-1].start())
        for server in servers:
            server.wait_until_live(180)
        given = {"TRITON_GRPC_URL": haproxy.grpc, "TRUSTED_PROXIES": "1", "REQUEST_DEADLINE_S": "5"}
        webs = [start(haproxy.triton, WEB_CONCURRENCY="1", RATE_LIMIT="100000/h", **given) for _ in range(2)]
        # A third Triton was never started.
        haproxy.start([(each.options.http_url, each.options.grpc_url) for each in servers], webs)
        running.callback(haproxy.stop)
        eventually(lambda: sorted(haproxy.are_up().values()) == [False] * 2 + [True] * 6)
        yield haproxy, processes, labels_of(haproxy)


def test_photos_texts_and_streams_pass_and_nobody_is_believed_where_they_come_from(behind: Any) -> None:
    haproxy, _, labels = behind
    assert len(set(labels)) > 1
    body = json.dumps({"text": "Я люблю чай.", "stream": True})
    reply = haproxy.request("POST", "/api/v1/translate", body, Content_Type="application/json")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert b"I like tea." in reply.body
    assert haproxy.request("GET", "/metrics").status == 404
    with Triton.at(f"grpc://{haproxy.grpc}") as triton:
        assert triton.describe("translator").name == "translator"

    def left() -> set[str]:
        """What is left of their rate, by who they say they are."""
        asked = (
            haproxy.request("GET", "/api/v1/models", X_Forwarded_For=f"6.6.6.{number}") for number in range(4)
        )
        return {each.headers["ratelimit"].split("r=")[1] for each in asked}

    eventually(lambda: len(left()) > 1)  # they are one client, whatever they say


@pytest.mark.parametrize("fault", ["reloaded", "stopped", "killed"])
def test_what_is_lost_under_load_is_little_and_never_wrong(behind: Any, fault: str) -> None:
    haproxy, processes, labels = behind
    with Clients(haproxy, labels) as clients:
        time.sleep(1)
        if fault == "reloaded":
            haproxy.reload()
        else:
            os.kill(processes[0].pid, signal.SIGSTOP if fault == "stopped" else signal.SIGTERM)
            eventually(lambda: not haproxy.are_up()["triton/triton1"])
        time.sleep(2)
    if fault == "stopped":
        os.kill(processes[0].pid, signal.SIGCONT)
        eventually(lambda: haproxy.are_up()["triton/triton1"])
    outcome = clients.outcome
    refused = outcome.statuses.total() - outcome.statuses[200]
    assert outcome.wrong == 0
    assert outcome.statuses[200] > 100
    assert refused <= {"killed": 16, "stopped": 16, "reloaded": 0}[fault], outcome.statuses
