"""Answers of the app while Triton is away, frozen, restarted, or without the model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.eventually import eventually
from support.triton import some_models, triton_server

from gourmet.stack.triton_server import TritonServer

MODEL, OTHER = "food_classifier_onnx", "digits"


@pytest.fixture(scope="module")
def own_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton that these tests may stop and freeze."""
    with triton_server(some_models(tmp_path_factory.mktemp("models"), MODEL, OTHER)) as server:
        server.wait_until_live(120)
        yield server


@pytest.fixture(scope="module")
def web(start: Callable[..., Any], own_triton: TritonServer) -> Any:
    return start(own_triton.options.http_url, FOOD11_MODEL_NAME=MODEL)


def control(server: TritonServer, action: str, model: str) -> None:
    url = f"http://{server.options.http_url}/v2/repository/models/{model}/{action}"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=60) as response:
        assert response.status == 200


@contextlib.contextmanager
def frozen(server: TritonServer) -> Iterator[None]:
    pid = server.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


ABORTS_ONCE = """
import os, pathlib, sys
from triton_python_backend_utils import *
class TritonPythonModel:
    def initialize(self, args):
        first = pathlib.Path(args["model_repository"], "first")
        if not first.exists():
            first.touch()
            print("what():  boost::interprocess::lock_exception", file=sys.stderr, flush=True)
            os.kill(os.getppid(), 6)
"""


@pytest.mark.slow
def test_a_triton_that_aborts_by_its_lock_fault_while_it_loads_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "1" / "model.py").write_text(ABORTS_ONCE)
    (tmp_path / "model" / "config.pbtxt").write_text('backend: "python"')
    with triton_server(tmp_path) as server:
        first = server.pid
        server.wait_until_live(120)
        assert server.pid != first


@pytest.mark.promise("operating: Triton is frozen (SIGSTOP)")
def test_a_frozen_triton_gives_504_within_the_deadline_and_answers_again_afterwards(
    start: Callable[..., Any], own_triton: TritonServer, sample: bytes
) -> None:
    short = {"REQUEST_DEADLINE_S": "5", "WEB_CONCURRENCY": "1"}
    web = start(own_triton.options.http_url, FOOD11_MODEL_NAME=MODEL, **short)
    eventually(lambda: web.predict(sample).status == 200)
    with frozen(own_triton):
        for _ in range(2):
            reply = web.predict(sample)
            assert (reply.status, reply.json["error"]["code"]) == (504, "triton_too_slow")
            assert reply.seconds < 30
    eventually(lambda: web.predict(sample).status == 200)


@pytest.mark.promise("operating: the model is unloaded")
def test_an_unloaded_model_gives_503_with_the_names_of_the_ready_models(
    web: Any, own_triton: TritonServer, sample: bytes
) -> None:
    assert web.predict(sample).status == 200
    control(own_triton, "unload", MODEL)
    try:
        eventually(lambda: web.predict(sample).status == 503)
        reply = web.predict(sample)
        assert reply.json["error"]["code"] == "model_not_ready"
        assert OTHER in reply.json["error"]["message"]
        assert int(reply.headers["retry-after"]) >= 1
    finally:
        control(own_triton, "load", MODEL)
    eventually(lambda: web.predict(sample).status == 200)


@pytest.mark.slow
def test_a_changed_threshold_is_noticed_without_a_restart(
    web: Any, own_triton: TritonServer, sample: bytes
) -> None:
    url = f"http://{own_triton.options.http_url}/v2/models/{MODEL}/config"
    with urllib.request.urlopen(url, timeout=30) as response:
        shipped = json.load(response)
    load = f"http://{own_triton.options.http_url}/v2/repository/models/{MODEL}/load"

    def set_threshold(threshold: str) -> None:
        parameters = {**shipped["parameters"], "threshold": {"string_value": threshold}}
        body = json.dumps({"parameters": {"config": json.dumps({**shipped, "parameters": parameters})}})
        with urllib.request.urlopen(urllib.request.Request(load, body.encode()), timeout=60):
            pass

    try:
        for threshold, sure in (("0.01", True), ("1.1", False)):
            set_threshold(threshold)
            # Each worker notices for itself, so both forms are asked until both answer again.
            eventually(lambda sure=sure: web.predict(sample).json["sure"] is sure)
            eventually(lambda sure=sure: (b'answer sure"' in web.predict(sample, "text/html").body) is sure)
    finally:
        set_threshold(shipped["parameters"]["threshold"]["string_value"])


def test_kept_connections_to_a_restarted_triton_cause_no_error(
    web: Any, own_triton: TritonServer, sample: bytes, in_parallel: Callable[..., list[Any]]
) -> None:
    assert {reply.status for reply in in_parallel(web.predict, [sample] * 24)} == {200}
    own_triton.stop()
    own_triton.start()
    own_triton.wait_until_live(120)
    model = f"http://{own_triton.options.http_url}/v2/models/{MODEL}/ready"

    def ready() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(model, timeout=60) as response:
            return bool(response.status == 200)
        return False

    eventually(ready, 60)
    assert {reply.status for reply in in_parallel(web.predict, [sample] * 24)} == {200}
