"""A decoder that never returns costs the request that sent its picture a 504, and nobody else anything."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
from support.eventually import eventually
from support.planted import busy_with, gif, plant
from support.triton import RunningTriton, run_triton, some_models
from support.web_app import StartWeb, WebApp, form

from gourmet.pictures import decoders
from gourmet.systems.digits.contract import SYSTEM as DIGITS
from gourmet.systems.food11.contract import SYSTEM as FOOD

pytestmark = pytest.mark.slow

ROUTES = {"/predict": FOOD, "/digits": DIGITS}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return plant(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def planted_triton(
    tmp_path_factory: pytest.TempPathFactory, faults: dict[str, str]
) -> Iterator[RunningTriton]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in faults.items():
            patch.setenv(name, value)
        models = some_models(tmp_path_factory.mktemp("planted") / "models", "food_classifier", "digits")
        yield from run_triton(models)


@pytest.fixture(scope="module")
def planted_web(start: StartWeb, planted_triton: RunningTriton, faults: dict[str, str]) -> WebApp:
    """Start a web app with one worker, so that every fault affects every request."""
    return start(planted_triton.http_url, WEB_CONCURRENCY="1", **faults)


@pytest.mark.promise("operating: a picture whose decoder never returns")
@pytest.mark.parametrize(
    ("path", "fault", "at_once"), [("/digits", "never returns", 1), ("/predict", "sleeps", 10)]
)
def test_a_decoder_that_never_returns_fails_only_its_own_request(
    planted_web: WebApp, path: str, fault: str, at_once: int
) -> None:
    """Requests beyond the decoder places are refused as busy; photos are still answered."""
    sample = ROUTES[path].sample()

    def ask(data: bytes) -> Any:
        body, content = form(data)
        return planted_web.request("POST", path, body, Accept="application/json", **content)

    honest = []
    with ThreadPoolExecutor(at_once) as pool:
        stuck = [pool.submit(ask, gif(fault)) for _ in range(at_once)]
        while not all(future.done() for future in stuck):
            honest.append(ask(sample))
        answers = [future.result() for future in stuck]
    assert {reply.status for reply in honest} == {200}
    assert len(honest) > 2, "the others waited for the decoder"
    codes = {(answer.status, answer.json["error"]["code"]) for answer in answers}
    assert (504, "too_slow") in codes
    assert {code for _, code in codes} <= {"too_slow", "triton_busy", "triton_too_slow", "overloaded"}
    assert ask(gif("honest")).status in (200, 400)  # a digit of one colour is blank


def test_a_client_that_disconnects_ends_its_decoding(planted_web: WebApp) -> None:
    web = psutil.Process(planted_web.process.pid)
    body, content = form(gif("sleeps"))
    connection = http.client.HTTPConnection("127.0.0.1", planted_web.port, timeout=60)
    connection.request("POST", "/digits", body, content)
    eventually(lambda: busy_with("sleeps", web) != [])
    began = time.monotonic()
    connection.close()
    eventually(lambda: busy_with("sleeps", web) == [])
    assert time.monotonic() - began < decoders.WALL_S - 1, "it ended by its own limit"


def test_a_request_cancelled_in_triton_ends_its_decoding(planted_triton: RunningTriton) -> None:
    tensor = triton_grpc.InferInput("INPUT_IMAGE", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[gif("sleeps")]], np.object_))
    triton = psutil.Process(planted_triton.pid)
    errors: SimpleQueue[object] = SimpleQueue()
    with triton_grpc.InferenceServerClient(planted_triton.grpc_url) as client:
        call = client.async_infer("food_classifier", [tensor], lambda result, error: errors.put(error))
        eventually(lambda: busy_with("sleeps", triton) != [])
        began = time.monotonic()
        call.cancel()
        assert "cancelled" in str(errors.get(timeout=60)).lower()
    eventually(lambda: busy_with("sleeps", triton) == [])
    assert time.monotonic() - began < decoders.WALL_S - 1, "it ended by its own limit"
