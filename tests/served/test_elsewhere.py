"""Verbs and the app against a Triton behind TLS, which sees none of the folders here."""

from __future__ import annotations

import json
import os
import shutil
import ssl
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import said
from support.needs import need
from support.small_network import ARCHITECTURE, LABELS, saved
from support.stopping import everything
from support.tls import Certificates, TlsDoor
from support.triton import MODELS, RunningTriton, run_triton

from gourmet.bench.inputs import DataSource, rows_for
from gourmet.bench.results import LoadSpec
from gourmet.bench.workload import Addresses, ask_alone, wire_for
from gourmet.repository.versions import version_numbers
from gourmet.stack import run_file
from gourmet.stack.connect import connect
from gourmet.stack.run_file import RunningStack
from gourmet.triton_client.errors import TritonUnreachable

pytestmark = pytest.mark.slow

MODEL = "food_classifier_onnx"
TOKEN = "token-of-the-test"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """A Triton started by hand, with a repository of its own that is empty."""
    yield from run_triton(tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    need("openssl")
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def _known(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = certificates.sign("client", "DNS:client")
    monkeypatch.setenv("TRITON_CA_FILE", str(certificates.ca))
    monkeypatch.setenv("TRITON_CLIENT_CERT", str(certificate))
    monkeypatch.setenv("TRITON_CLIENT_KEY", str(key))
    monkeypatch.setenv("TRITON_TOKEN", TOKEN)


def door_to(address: str, certificates: Certificates) -> TlsDoor:
    """Return a TLS door that requires a client certificate."""
    context = certificates.context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    return TlsDoor(address, context)


@pytest.fixture(scope="module")
def https(elsewhere: RunningTriton, certificates: Certificates) -> Iterator[TlsDoor]:
    with door_to(elsewhere.http_url, certificates) as opened:
        yield opened


@pytest.fixture(scope="module")
def grpcs(elsewhere: RunningTriton, certificates: Certificates) -> Iterator[TlsDoor]:
    with door_to(elsewhere.grpc_url, certificates) as opened:
        yield opened


@pytest.fixture
def ours(tmp_path: Path, elsewhere: RunningTriton) -> Iterator[Path]:
    """A repository here, of an ONNX model in two versions and a Python model."""
    for name in (MODEL, "digits"):
        shutil.copytree(MODELS / name, tmp_path / "ours" / name)
    shutil.copytree(tmp_path / "ours" / MODEL / "1", tmp_path / "ours" / MODEL / "2")
    yield tmp_path / "ours"
    with connect(elsewhere.http_url) as triton:
        for name in triton.ready_models():
            triton.unload(name)


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_rollback_works_on_a_server_without_access_to_our_folders(
    scheme: str, https: TlsDoor, grpcs: TlsDoor, ours: Path, elsewhere: RunningTriton
) -> None:
    url = f"{scheme}://{(https if scheme == 'https' else grpcs).address}"
    server = ("--url", url, "--repository", ours)
    assert "failed to poll from model repository" in said("rollback", MODEL, *server, status=1)
    assert version_numbers(ours / MODEL) == (1, 2), "nothing is withdrawn that the server cannot take back"
    assert f"{MODEL} answers: the sample is" in said("rollback", MODEL, *server, "--send")
    assert version_numbers(ours / MODEL) == (1,)
    with connect(url) as triton:
        assert triton.describe(MODEL).version == "1"
        assert triton.version().startswith("triton 2")
    assert not everything(elsewhere.repository)


def test_a_model_in_python_is_sent_with_its_labels_and_its_code(
    https: TlsDoor, ours: Path, tmp_path: Path
) -> None:
    shutil.copytree(ours / "digits" / "1", ours / "digits" / "2")
    url = f"https://{https.address}"
    assert "the sample is 3" in said("rollback", "digits", "--url", url, "--repository", ours, "--send")


def test_bench_sends_requests_over_tls(https: TlsDoor, grpcs: TlsDoor, ours: Path) -> None:
    said("rollback", MODEL, "--url", f"https://{https.address}", "--repository", ours, "--send")
    with connect(f"https://{https.address}") as triton:
        rows = rows_for(triton.describe(MODEL), DataSource(count=2))
    target = Addresses(f"https://{https.address}", f"grpcs://{grpcs.address}")
    https.asked.clear()
    by_http, by_grpc = (
        ask_alone(wire_for(target, LoadSpec(MODEL, protocol=protocol), rows), rows)
        for protocol in ("http", "grpc")
    )
    for http_answer, grpc_answer in zip(by_http, by_grpc, strict=True):
        np.testing.assert_allclose(http_answer["output"], grpc_answer["output"], rtol=1e-4, atol=1e-4)
    assert https.asked.lower().count(f"authorization: bearer {TOKEN}".encode()) == 2


def test_texts_are_streamed_over_tls_only_to_clients_with_a_certificate(
    triton: Any, certificates: Certificates
) -> None:
    with (
        door_to(triton.http_url, certificates) as https,
        door_to(triton.grpc_url, certificates) as grpcs,
    ):
        for url in (f"https://{https.address}", f"grpcs://{grpcs.address}"):
            assert "I like tea." in said("translate", "--url", url, "Я люблю чай.")
            with pytest.MonkeyPatch.context() as without:
                without.delenv("TRITON_CLIENT_CERT")
                with connect(url) as stranger, pytest.raises(TritonUnreachable):
                    stranger.check_live()


def test_verbs_for_a_remote_triton_leave_the_local_stack_unchanged(
    elsewhere: RunningTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --url and --repository alone, beside a stack whose run file every verb finds."""
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path / "home"))
    local, theirs = tmp_path / "home" / "models", elsewhere.repository
    shutil.copytree(MODELS / MODEL, local / MODEL)
    stack = RunningStack(os.getpid(), "127.0.0.1:1", "127.0.0.1:2", "", "", [str(local)], "explicit")
    server: tuple[object, ...] = ("--url", elsewhere.http_url, "--repository", theirs)
    network = ("--weights", saved(tmp_path / "best.pth"), "--architecture", ARCHITECTURE)

    def listed() -> dict[tuple[str, int], str]:
        rows = json.loads(said("list", "--json", *server))
        return {(row["model"], row["version"]): row["state"] for row in rows if row["model"]}

    before = {path: path.stat().st_mtime_ns for path in local.rglob("*")}
    with run_file.run_file_for((1, 2), {"stack": asdict(stack)}):
        made = said("new", "plums", "--labels", ",".join(LABELS), *network, "--yes", *server)
        assert "plums_onnx answers: the sample is " in made
        assert f"--url {elsewhere.http_url}" in made, "what comes next is for that server, too"
        assert "plums_onnx answers: the sample is " in said("deploy", "plums", *network, *server)
        assert listed() == {("plums_onnx", 1): "not loaded", ("plums_onnx", 2): "serves"}
        assert "now: 2 instances on the CPU" in said("config", "plums_onnx", "--instances", 2, *server[:2])
        assert "now: " in said("config", "plums_onnx", "--reset", *server)
        assert "version 1 serves" in said("rollback", "plums", *server)
        assert listed() == {("plums_onnx", 1): "serves"}
        assert "ready: plums_onnx" in said("doctor", *server)
        said("remove", "plums", "--yes", *server)
        with connect(elsewhere.http_url) as triton:
            assert triton.ready_models() == []
    assert not everything(theirs)
    assert {path: path.stat().st_mtime_ns for path in local.rglob("*")} == before
    assert not list((tmp_path / "home" / "systems").iterdir())
