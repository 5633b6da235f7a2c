"""The Open Inference Protocol through nginx, with NVIDIA's own client."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http
from support.needs import absent
from support.nginx import ROOT, nginx
from tritonclient.utils import InferenceServerException

from gourmet.systems.food11.contract import SYSTEM

KEY = "a-key-for-the-protocol"
# The client adds its own to the headers that it gets: each call needs a copy.
AUTH = {"X-API-Key": KEY}


@pytest.fixture(scope="module")
def proxy(start: Any, triton: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    settings = {"API_KEYS": KEY, "RATE_LIMIT": "1000/h", "MAX_PHOTOS": "4", "WEB_CONCURRENCY": "1"}
    web = start(triton.http_url, FOOD11_MODEL_NAME="food_classifier", **settings)
    with nginx(web.port, tmp_path_factory.mktemp("nginx")) as started:
        yield replace(web, port=started.port)


@pytest.fixture
def client(proxy: Any) -> Iterator[http.InferenceServerClient]:
    with http.InferenceServerClient(f"127.0.0.1:{proxy.port}") as connected:
        yield connected


def tensor(name: str, values: Any, datatype: str, *, binary: bool = True) -> http.InferInput:
    described = http.InferInput(name, list(values.shape), datatype)
    described.set_data_from_numpy(values, binary_data=binary)
    return described


def photos(*contents: bytes, binary: bool = True) -> list[http.InferInput]:
    values = np.empty((len(contents), 1), np.object_)
    values[:, 0] = contents
    return [tensor("INPUT_IMAGE", values, "BYTES", binary=binary)]


def pixels(sample: bytes) -> list[http.InferInput]:
    return [tensor("input", SYSTEM.arrange(SYSTEM.pixels(sample), "FP32"), "FP32")]


def test_a_photo_is_classified_as_by_the_api(
    client: http.InferenceServerClient, proxy: Any, sample: bytes
) -> None:
    result = client.infer("food_classifier", photos(sample), headers={**AUTH}, request_id="mine")
    assert result.as_numpy("FOOD_LABEL").ravel().tolist() == [b"Noodles/Pasta"]
    assert result.get_response()["id"] == "mine"
    answer = proxy.request("POST", "/api/v1/classify", sample, **{"Content-Type": "image/jpeg"}, **AUTH).json
    probability = answer["results"][0]["probability"]
    assert result.as_numpy("PROBABILITY").ravel()[0] == pytest.approx(probability, abs=1e-5)


def test_photos_may_be_base64_in_json_and_outputs_be_chosen(
    client: http.InferenceServerClient, sample: bytes
) -> None:
    texts = photos(base64.b64encode(sample), base64.b64encode(sample), binary=False)
    wanted = [http.InferRequestedOutput("FOOD_LABEL", binary_data=False)]
    result = client.infer("food_classifier", texts, outputs=wanted, headers={**AUTH})
    (output,) = result.get_response()["outputs"]
    assert output["data"] == ["Noodles/Pasta"] * 2


@pytest.mark.parametrize("version", ["", "1"])
def test_a_tensor_is_answered_with_the_bytes_of_triton(
    client: http.InferenceServerClient, triton: Any, sample: bytes, version: str
) -> None:
    model = "food_classifier_onnx"
    assert client.is_model_ready(model, version, headers={**AUTH})
    result = client.infer(model, pixels(sample), model_version=version, headers={**AUTH})
    with http.InferenceServerClient(triton.http_url) as direct:
        expected = direct.infer(model, pixels(sample))
    np.testing.assert_allclose(result.as_numpy("output"), expected.as_numpy("output"), rtol=1e-5)


def test_the_server_and_its_models_are_described(client: http.InferenceServerClient, triton: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    described = client.get_model_metadata("food_classifier", headers={**AUTH})
    with http.InferenceServerClient(triton.http_url) as direct:
        expected = direct.get_model_metadata("food_classifier")
    assert {key: described[key] for key in ("inputs", "outputs")} == {
        key: expected[key] for key in ("inputs", "outputs")
    }


def test_models_that_are_not_open_are_unknown(client: http.InferenceServerClient, sample: bytes) -> None:
    for closed in ("translator_bls", "food_first", "translator", "nobody", "..%2Frepository"):
        assert not client.is_model_ready(closed, headers={**AUTH})
        with pytest.raises(InferenceServerException) as refused:
            client.infer(closed, photos(sample), headers={**AUTH})
        assert "is not available; ready models: " in str(refused.value) or "404" in str(refused.value)


def test_nothing_but_inference_is_reachable(proxy: Any) -> None:
    for method, path in [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/food_classifier/unload"),
        ("GET", "/v2/models/stats"),
        ("GET", "/v2/models/food_classifier/config"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/models/food_classifier/generate"),
        ("POST", "/v2/logging"),
    ]:
        assert proxy.request(method, path, **AUTH).status == 404, path


def test_a_key_is_needed_and_rows_count_against_the_rate_limit(proxy: Any, sample: bytes) -> None:
    assert (
        proxy.request("GET", "/v2/models/food_classifier", X_API_Key="a-key-that-is-not-known").status == 401
    )
    encoded = base64.b64encode(sample).decode()
    path = "/v2/models/food_classifier/infer"

    def left(rows: int) -> int:
        photo = {"name": "INPUT_IMAGE", "shape": [rows, 1], "datatype": "BYTES", "data": [encoded] * rows}
        body = json.dumps({"inputs": [photo]})
        reply = proxy.request("POST", path, body, **AUTH)
        assert (reply.status, "x-request-id" in reply.headers) == (200, True)
        return int(re.findall(r"r=(\d+)", reply.headers["ratelimit"])[0])

    assert left(1) - left(3) == 3


def test_the_programs_in_the_docs_print_the_class(
    proxy: Any, triton: Any, sample: bytes, tmp_path: Path
) -> None:
    (tmp_path / "photo.jpg").write_bytes(sample)
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "using.md").read_text(), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        program = program.replace("localhost:5000", f"127.0.0.1:{proxy.port}").replace("…", KEY)
        program = program.replace("localhost:8000", triton.http_url)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert "Noodles/Pasta" in done.stdout, done.stderr


# A program for a Python of its own, since KServe's package brings 450 MB.
KSERVE = """
import asyncio, sys
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

MODEL = "food_classifier"

async def main(url, key, photo):
    client, keyed = InferenceRESTClient(RESTConfig(protocol="v2")), {"X-API-Key": key}
    assert await client.is_server_ready(url) and await client.is_server_live(url)
    assert await client.is_model_ready(url, MODEL, headers=keyed)
    given = InferInput("INPUT_IMAGE", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[photo]], np.object_), binary_data=True)
    answer = await client.infer(url, InferRequest(MODEL, [given]), model_name=MODEL, headers=keyed)
    (label,) = [each.data for each in answer.outputs if each.name == "FOOD_LABEL"]
    print(label)

asyncio.run(main(sys.argv[1], sys.argv[2], sys.stdin.buffer.read()))
"""


@pytest.mark.slow
def test_kserves_own_client_gets_the_class(proxy: Any, sample: bytes) -> None:
    python = os.environ.get("KSERVE_PYTHON") or absent("KSERVE_PYTHON names no Python that has kserve")
    command = [python, "-c", KSERVE, f"http://127.0.0.1:{proxy.port}", KEY]
    done = subprocess.run(command, input=sample, capture_output=True, timeout=120)
    assert done.stdout.decode().strip() == "['Noodles/Pasta']", done.stderr.decode()[-2000:]
