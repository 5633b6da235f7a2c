"""A real Triton with its locks on, and NVIDIA's perf_analyzer, which needs their key for shared memory."""

from __future__ import annotations

import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import said
from support.triton import RunningTriton, some_models, triton_server
from support.up import GOURMET

from gourmet.stack import api_keys, run_file
from gourmet.stack.connect import ask_sample, connect
from gourmet.stack.triton_server import TritonServer
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import ApiRestricted
from gourmet.triton_client.triton import Triton

KEY = api_keys.make_key({})
CLOSED = [
    ("/v2/repository/index", b"{}"),
    ("/v2/repository/models/digits/load", b"{}"),
    ("/v2/repository/models/digits/unload", b"{}"),
    ("/v2/systemsharedmemory/status", None),
    ("/v2/systemsharedmemory/region/stolen/register", b'{"key":"/psm","offset":0,"byte_size":64}'),
    ("/v2/cudasharedmemory/status", None),
    ("/v2/logging", b'{"log_file":"/tmp/anywhere"}'),
    ("/v2/trace/setting", b'{"trace_file":"/tmp/anywhere"}'),
    ("/v2/models/digits/trace/setting", b"{}"),
]
OPEN = ["/v2", "/v2/health/ready", "/v2/models/digits", "/v2/models/digits/config", "/v2/models/stats"]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    models = some_models(tmp_path_factory.mktemp("locked"), "digits", "food_classifier_onnx")
    log: list[str] = []
    with triton_server(models, on_line=log.append, key=KEY) as server:
        server.wait_until_live(180)
        assert not any(KEY in line for line in log)
        yield server


@pytest.fixture
def with_keys(locked: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the locked Triton, whose keys this user has."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with run_file.run_file_for((locked.options.http_port, locked.options.grpc_port), {"admin": KEY}):
        yield locked.options.http_url


def status(server: TritonServer, path: str, body: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(f"http://{server.options.http_url}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.promise("SECURITY 12")
@pytest.mark.parametrize(("path", "body"), CLOSED, ids=[path for path, _ in CLOSED])
def test_calls_that_change_the_server_need_its_key(
    locked: TritonServer, path: str, body: bytes | None
) -> None:
    for headers in ({}, {api_keys.ADMIN_HEADER: "guessed"}):
        assert status(locked, path, body, **headers) == 403


def test_the_key_opens_them(locked: TritonServer) -> None:
    assert status(locked, "/v2/repository/index", b"{}", **api_keys.headers(KEY)) == 200
    assert status(locked, "/v2/systemsharedmemory/status", **api_keys.headers(KEY)) == 200


@pytest.mark.parametrize("path", OPEN)
def test_calls_of_the_app_need_no_key(locked: TritonServer, path: str) -> None:
    assert status(locked, path) == 200


def test_grpc_is_locked_alike(locked: TritonServer) -> None:
    url = f"grpc://{locked.options.grpc_url}"
    keyed = Triton(url, keys=api_keys.headers(KEY))
    with Triton(url) as stranger, keyed as friend:
        with pytest.raises(ApiRestricted, match="TRITON_ADMIN_KEY"):
            stranger.index()
        assert friend.index()
        assert stranger.is_ready("digits")


def test_the_key_is_not_in_the_list_of_processes(locked: TritonServer) -> None:
    line = Path(f"/proc/{locked.pid}/cmdline").read_text()
    assert f"{api_keys.ADMIN_HEADER}=***" in line
    assert KEY not in line


def test_our_own_commands_find_the_key(with_keys: str) -> None:
    said("config", "digits", "--instances", 1, "--url", with_keys)
    with connect(with_keys) as triton:
        assert triton.index()["digits"]["state"] == "READY"
    assert "the sample is 3" in ask_sample(with_keys, "digits", "digits")


def test_the_app_lists_models_and_asks_them_without_a_key(locked: TritonServer) -> None:
    tensor = np.zeros((1, 3, 224, 224), np.float32)
    app = Triton(locked.options.http_url)
    assert app.ready_models(Deadline(30)) == ["digits", "food_classifier_onnx"]
    assert app.infer("food_classifier_onnx", {"input": tensor}, Deadline(60)).outputs["output"].size == 11


# A run must end quickly on a busy machine, and its figures are of no interest.
QUICK = ("--measurement-mode=count_windows", "--measurement-request-count=9", "--stability-percentage=999")


def perf_analyzer(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [GOURMET, "perf-analyzer", *words, *QUICK]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240)


@pytest.mark.promise("README: NVIDIA's perf_analyzer runs with what it needs")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_default_model_is_sent_the_sample_photo(triton: RunningTriton, protocol: str) -> None:
    url = triton.http_url if protocol == "http" else triton.grpc_url
    done = perf_analyzer("-m", "food_classifier", "-i", protocol, "-u", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.findall(r"throughput: ([\d.]+) infer/sec", done.stdout)[-1]) > 0


def test_a_missing_model_is_reported_with_perf_analyzer_s_message(triton: RunningTriton) -> None:
    done = perf_analyzer("-m", "nobody", "-u", triton.http_url)
    assert done.returncode != 0
    assert "unknown model: 'nobody'" in done.stdout + done.stderr


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_uses_shared_memory_with_the_key(
    with_keys: str, locked: TritonServer, protocol: Any
) -> None:
    url = with_keys if protocol == "http" else locked.options.grpc_url
    done = perf_analyzer("-m", "digits", "-u", url, "-i", protocol, "--shared-memory", "system")
    assert done.returncode == 0, done.stdout + done.stderr
