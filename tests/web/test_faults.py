"""Triton, a model, its process or a worker that dies, freezes or is restarted, and cut connections."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.eventually import eventually
from support.made_models import python_model
from support.proxy import Proxy
from support.triton import some_models, triton_server
from support.up import Up
from support.web_app import Site

from gourmet.stack.connect import ask_sample, connect
from gourmet.stack.processes import wait_until
from gourmet.stack.triton_server import TritonServer
from gourmet.systems.food11 import contract
from gourmet.triton_client.triton import Triton

MODEL, OTHER = "food_classifier_onnx", "digits"
DEADLINE_S = 10
TEXT = "Я люблю чай."


@pytest.fixture(scope="module")
def own_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton that these tests may stop and freeze."""
    with triton_server(some_models(tmp_path_factory.mktemp("models"), MODEL, OTHER)) as server:
        server.wait_until_live(120)
        yield server


@pytest.fixture(scope="module")
def web(start: Callable[..., Any], own_triton: TritonServer) -> Any:
    return start(own_triton.options.http_url, FOOD11_MODEL_NAME=MODEL)


def control(server: TritonServer) -> Triton:
    return connect(server.options.http_url)


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
    python_model(tmp_path / "model", ABORTS_ONCE)
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
    with control(own_triton) as triton:
        triton.unload(MODEL)
    try:
        eventually(lambda: web.predict(sample).status == 503)
        reply = web.predict(sample)
        assert reply.json["error"]["code"] == "model_not_ready"
        assert OTHER in reply.json["error"]["message"]
        assert int(reply.headers["retry-after"]) >= 1
    finally:
        with control(own_triton) as triton:
            triton.load(MODEL)
    eventually(lambda: web.predict(sample).status == 200)


@pytest.mark.slow
def test_a_changed_threshold_is_noticed_without_a_restart(
    web: Any, own_triton: TritonServer, sample: bytes
) -> None:
    with control(own_triton) as triton:
        shipped = triton.config(MODEL)
        try:
            for threshold, sure in (("0.01", True), ("1.1", False)):
                parameters = {**shipped["parameters"], "threshold": {"string_value": threshold}}
                triton.load(MODEL, {**shipped, "parameters": parameters})
                # Each worker notices for itself, so both forms are asked until both answer again.
                eventually(lambda sure=sure: web.predict(sample).json["sure"] is sure)
                eventually(
                    lambda sure=sure: (b'answer sure"' in web.predict(sample, "text/html").body) is sure
                )
        finally:
            triton.load(MODEL, shipped)


def test_kept_connections_to_a_restarted_triton_cause_no_error(
    web: Any, own_triton: TritonServer, sample: bytes, in_parallel: Callable[..., list[Any]]
) -> None:
    assert {reply.status for reply in in_parallel(web.predict, [sample] * 24)} == {200}
    own_triton.stop()
    own_triton.start()
    own_triton.wait_until_live(120)
    with control(own_triton) as triton:
        eventually(lambda: triton.is_ready(MODEL), 60)
    assert {reply.status for reply in in_parallel(web.predict, [sample] * 24)} == {200}


@pytest.mark.slow
@pytest.mark.promise("operating: a model's process dies or is frozen")
@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_a_model_whose_process_dies_or_freezes_is_loaded_again(tmp_path: Path, fault: str) -> None:
    models, tmp = some_models(tmp_path / "models", MODEL, OTHER, instances=2), tmp_path / "tmp"
    tmp.mkdir()
    env = {contract.SYSTEM.model_variable: MODEL}
    with Up("--triton-only", "--unlocked", f"--model-repository={models}", tmp=tmp, env=env) as up:
        before = up.stubs(MODEL)
        getattr(before[0], fault)()
        up.wait_for(f"a process of the model '{MODEL}' died; reloading the model", 60)

        def are_new() -> bool:
            now = up.stubs(MODEL)
            return len(now) == len(before) and not set(now) & set(before)

        wait_until(are_new, 60, "the processes of the model are not new ones")
        for _ in range(4):  # each of its instances
            assert ask_sample(f"127.0.0.1:{up.http}", "food11", MODEL)
    assert not up.processes()
    assert not up.leftovers()


@pytest.mark.slow
def test_texts_of_a_killed_process_end_by_their_deadline_and_the_model_recovers(tmp_path: Path) -> None:
    """Whole ones with an error's status, a stream with an error part."""
    models = some_models(tmp_path / "models", MODEL, "translator", "translator_stream")
    env = {contract.SYSTEM.model_variable: MODEL, "LOG_FORMAT": "json"}
    env["GENERATE_DEADLINE_S"] = str(DEADLINE_S)
    with Up(f"--model-repository={models}", tmp=tmp_path, env=env) as up:

        def ask(**body: Any) -> tuple[int, str]:
            kind = {"Content-Type": "application/json"}
            reply = Site(up.port).request("POST", "/api/v1/translate", json.dumps(body), **kind)
            return reply.status, reply.body.decode()

        stubs = [up.stubs(model)[0] for model in ("translator_stream", "translator")]
        for stub in stubs:
            stub.suspend()  # so that both are sure to be under way
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(ask, texts=[TEXT])
            streamed = pool.submit(ask, text=TEXT, stream=True)
            eventually(lambda: Site(up.port).measured("web_texts_in_flight").get("work") == 2)
            for stub in stubs:
                stub.kill()
            status, content = whole.result()
            assert status in (502, 503, 504), content
            status, content = streamed.result()
            assert status in (502, 503, 504) or "event: error" in content, content[-300:]
        wait_until(lambda: ask(text=TEXT)[0] == 200, 60, "the model does not answer again")
    assert [line for line in up.lines if not isinstance(json.loads(line), dict)] == []


@pytest.mark.slow
@pytest.mark.promise("operating: connections to Triton are cut")
def test_a_cut_connection_loses_no_request_and_a_held_one_ends_by_the_deadline(
    start: Callable[..., Any], triton: Any, sample: bytes
) -> None:
    with Proxy(triton.http_url) as proxy:
        web = start(proxy.address, FOOD11_MODEL_NAME=MODEL, REQUEST_DEADLINE_S="30")
        for _ in range(4):
            assert web.predict(sample).status == 200
            proxy.cut()
        proxy.passes.clear()
        reply = web.predict(sample)
        assert (reply.status, reply.json["error"]["code"]) == (504, "triton_too_slow")
        assert web.request("GET", "/healthz").status == 200
        proxy.passes.set()
        proxy.cut()
        wait_until(lambda: web.predict(sample).status == 200, 60, "it does not answer again")
        web.stop()


@pytest.mark.slow
@pytest.mark.promise("operating: a gunicorn worker is killed")
def test_requests_of_a_killed_worker_are_reset_and_succeed_when_repeated(
    start: Callable[..., Any], triton: Any, sample: bytes
) -> None:
    with Proxy(triton.http_url) as proxy, ThreadPoolExecutor(1) as pool:
        web = start(proxy.address, FOOD11_MODEL_NAME=MODEL, WEB_CONCURRENCY="1")
        wait_until(lambda: web.request("GET", "/readyz").status == 200, 60, "not ready")
        proxy.passes.clear()
        pending = pool.submit(web.predict, sample)
        wait_until(lambda: web.measured("web_photos_in_flight").get("work") == 1, 60, "not at work")
        (worker,) = psutil.Process(web.process.pid).children()
        worker.kill()
        with pytest.raises(ConnectionError):
            pending.result()
        proxy.passes.set()
        assert web.predict(sample).status == 200
        web.stop()
