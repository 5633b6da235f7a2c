"""A stub or a worker that dies, and the way to Triton cut and held up."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.eventually import eventually
from support.proxy import Proxy
from support.up import Up
from support.web_app import Site

from gourmet.stack.connect import ask_sample
from gourmet.stack.processes import wait_until
from gourmet.systems.food11 import contract

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parents[2] / "triton" / "models"
MODEL = "food_classifier_onnx"


@pytest.mark.promise("operating: a model's process dies or is frozen")
@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_a_model_whose_process_dies_or_freezes_is_loaded_again(tmp_path: Path, fault: str) -> None:
    for model in (MODEL, "digits"):
        shutil.copytree(MODELS / model, tmp_path / "models" / model)
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    env = {contract.SYSTEM.model_variable: MODEL}
    up = Up("--triton-only", "--unlocked", "--model-repository", str(tmp_path / "models"), tmp=tmp, env=env)
    try:
        up.wait_for("ready after")
        before = up.stubs(MODEL)
        getattr(before[0], fault)()
        up.wait_for(f"a process of the model '{MODEL}' died; reloading the model", 60)

        def are_new() -> bool:
            now = up.stubs(MODEL)
            return len(now) == len(before) and not set(now) & set(before)

        wait_until(are_new, 60, "the processes of the model are not new ones")
        for _ in range(4):  # each of its instances
            assert ask_sample(f"127.0.0.1:{up.http}", "food11", MODEL)
    finally:
        up.stop(signal.SIGTERM)
    assert not up.processes()
    assert not up.leftovers()


DEADLINE_S = 10
TEXT = "Я люблю чай."


def test_texts_of_a_killed_process_end_by_their_deadline_and_the_model_recovers(tmp_path: Path) -> None:
    """Whole ones with an error's status, a stream with an error part."""
    for model in (MODEL, "translator", "translator_stream"):
        shutil.copytree(MODELS / model, tmp_path / "models" / model)
    env = {contract.SYSTEM.model_variable: MODEL, "LOG_FORMAT": "json"}
    env["GENERATE_DEADLINE_S"] = str(DEADLINE_S)
    up = Up("--model-repository", str(tmp_path / "models"), tmp=tmp_path, env=env)
    url = f"http://127.0.0.1:{up.port}/api/v1/translate"

    def ask(payload: dict[str, Any]) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(payload).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=90) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode()

    try:
        up.wait_for("ready after")
        stubs = [up.stubs(model)[0] for model in ("translator_stream", "translator")]
        for stub in stubs:
            stub.suspend()  # so that both are sure to be under way
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(ask, {"texts": [TEXT]})
            streamed = pool.submit(ask, {"text": TEXT, "stream": True})
            eventually(lambda: Site(up.port).measured("web_texts_in_flight").get("work") == 2)
            for stub in stubs:
                stub.kill()
            status, content = whole.result()
            assert status in (502, 503, 504), content
            status, content = streamed.result()
            assert status in (502, 503, 504) or "event: error" in content, content[-300:]
        wait_until(lambda: ask({"text": TEXT})[0] == 200, 60, "the model does not answer again")
    finally:
        up.stop(signal.SIGTERM)
    assert [line for line in up.lines if not isinstance(json.loads(line), dict)] == []


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
