"""Verbs beside the real web app: doctor, bench and config; and a Triton that is reached by TLS."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import gourmet, said
from support.needs import need
from support.tls import Certificates, TlsDoor
from support.triton import some_models, triton_server
from support.web_app import StartWeb, form

from gourmet.bench.results import read_results
from gourmet.doctor import CHECKS, Examined, Finding
from gourmet.stack.preflight import free_ports
from gourmet.triton_client.triton import Triton

MODEL = "digits"
TOKEN = "token-of-the-test"


def says(check: str, port: int, triton_url: str = "127.0.0.1:1") -> Finding:
    (finding,) = CHECKS[check](Examined((), "127.0.0.1", {"--port": port}, triton_url, False, {}))
    return finding


def test_a_ready_web_app_passes(python_web: Any) -> None:
    assert (says("web", python_web.port).level, says("web", python_web.port).cause) == (
        "ok",
        f"{python_web.url} is ready",
    )
    assert says("ports", python_web.port).cause == f"{python_web.port} held by the running stack"


def test_a_web_app_without_triton_fails_with_the_cause(start: Any) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    finding = says("web", start(nowhere, WEB_CONCURRENCY="1").port)
    assert finding.level == "fail"
    assert "runs but is not ready (" in finding.cause
    assert nowhere in finding.cause
    assert "TRITON_SERVER_URL" in finding.fix


def test_a_missing_web_app_is_reported() -> None:
    assert says("web", free_ports(1)[0]).cause == "no web app to ask"


@pytest.fixture
def bench(triton: Any, python_web: Any) -> Any:
    def run(model: str, *arguments: str) -> Any:
        to = ["--url", triton.http_url, "--app-url", f"127.0.0.1:{python_web.port}", "--through", "app"]
        quick = ["--rows", "4", "--window", "1.5", "--windows", "2", "--warm-up", "0.2", "--steady", "95"]
        return gourmet("bench", "run", model, *to, *quick, "--attempts", "8", *arguments)

    return run


def test_photos_go_through_the_app(bench: Any, tmp_path: Path) -> None:
    result = bench("food_classifier", "--concurrency", "2", "--save", str(tmp_path))
    assert result.exit_code == 0, result.output
    (point,) = read_results(tmp_path / "bench.json").points
    assert point.load.through == "app"
    assert point.usage.app_memory_mib is not None
    assert point.usage.app_memory_mib > 20
    assert point.split_ms.network > 0


def test_the_app_is_asked_for_the_measured_model_and_its_refusal_is_reported(
    bench: Any, tmp_path: Path
) -> None:
    result = bench("food_classifier_onnx", "--save", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert read_results(tmp_path).points[0].load.model == "food_classifier_onnx"
    result = bench("digits")
    assert result.exit_code == 1
    assert "HTTP 4" in result.output
    assert "digits" in result.output


@pytest.mark.slow
def test_two_served_versions_are_offered_and_compared_until_a_reset(
    start: Callable[..., Any], tmp_path: Path, sample: bytes
) -> None:
    models = some_models(tmp_path, MODEL)
    shutil.copytree(models / MODEL / "1", models / MODEL / "10")
    with triton_server(models) as server:
        server.wait_until_live(120)
        url = server.options.http_url

        def config(*arguments: str) -> str:
            return said("config", "--url", url, "--repository", models, MODEL, *arguments)

        assert config("--versions", "1,10").endswith(f"serve: {MODEL}, {MODEL}/1\n")
        row = {"input": np.zeros((1, 1, 28, 28), np.float32)}
        for address in (url, f"grpc://{server.options.grpc_url}"):
            with Triton(address) as triton:
                assert triton.ready_versions() == [MODEL, f"{MODEL}/1"]
                versions = [triton.infer(name, row).model_version for name in (MODEL, f"{MODEL}/1")]
                assert versions == ["10", "1"]
                info = triton.describe(f"{MODEL}/1")
                assert (info.name, info.version, info.target) == (MODEL, "1", f"{MODEL}/1")
        web = start(url)

        def answered(query: str) -> str:
            reply = web.request("POST", f"/api/v1/digits{query}", sample, **{"Content-Type": "image/jpeg"})
            return str(reply.json["results"][0]["model"]["version"] if reply.status == 200 else reply.status)

        seen = [
            answered(query) for query in ("", "?version=1", "?model=digits/1", "?version=10", "?version=2")
        ]
        assert seen == ["10", "1", "1", "10", "404"]
        body, content = form(sample)
        accept = {"Accept": "application/json"}
        reply = web.request("POST", "/compare?system=digits", body, **accept, **content)
        assert [row["model"]["version"] for row in reply.json["results"]] == ["10", "1"]
        assert config("--versions", "10").endswith(f"serve: {MODEL}\n")
        assert config("--versions", "all").endswith(f"serve: {MODEL}, {MODEL}/1\n")
        config("--reset")
        with Triton(url) as triton:
            assert triton.ready_versions() == [MODEL]


def test_photos_and_texts_are_answered_over_tls_and_no_log_has_the_token(
    start: StartWeb, triton: Any, tmp_path: Path, sample: bytes
) -> None:
    need("openssl")
    certificates = Certificates(tmp_path)
    context = certificates.context()
    with TlsDoor(triton.http_url, context) as https, TlsDoor(triton.grpc_url, context) as grpcs:
        web = start(
            f"https://{https.address}",
            TRITON_GRPC_URL=f"grpcs://{grpcs.address}",
            TRITON_CA_FILE=str(certificates.ca),
            TRITON_TOKEN=TOKEN,
            WEB_CONCURRENCY="1",
        )
        assert web.request("GET", "/readyz").status == 200
        assert web.predict(sample).status == 200
        for stream in (False, True):
            body = {"text": "Я люблю чай.", "stream": stream}
            reply = web.request(
                "POST", "/api/v1/translate", json.dumps(body), Content_Type="application/json"
            )
            assert reply.status == 200, reply.body
            assert b"tea" in reply.body
        assert f"authorization: Bearer {TOKEN}".encode() in https.asked
        assert b"HTTP/2" in grpcs.asked
        assert web.stop() == 0
    assert TOKEN not in web.log.read_text()
