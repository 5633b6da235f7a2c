"""A new version and the way back, while clients keep asking."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.http as triton_http
from click.testing import Result
from onnx import numpy_helper
from support.cli import gourmet
from support.made_models import python_model
from support.repeating import Repeating
from support.stopping import everything

from gourmet.doctor import Examined, answers, served
from gourmet.repository.deploy import rollback, staged
from gourmet.repository.versions import version_numbers
from gourmet.served import manifest
from gourmet.stack import run_file
from gourmet.stack.connect import ask_sample, connect
from gourmet.stack.processes import wait_until
from gourmet.triton_client.errors import TritonRefused

MODEL = "rolling"
MODELS = Path(__file__).parents[2] / "triton" / "models"
SLOW_TO_LOAD = """\
import pathlib, time

class TritonPythonModel:
    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"])
        (folder / "began").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
"""


@pytest.fixture
def model(lab_triton: Any) -> Iterator[Path]:
    """The food model under another name, serving version 1."""
    folder = lab_triton.repository / MODEL
    shutil.copytree(MODELS / "food_classifier_onnx", folder)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("food_classifier_onnx", MODEL))
    load(lab_triton.http_url, MODEL)
    yield folder
    with triton_http.InferenceServerClient(lab_triton.http_url) as client:
        client.unload_model(MODEL)
    shutil.rmtree(folder)


def load(url: str, model: str) -> None:
    with connect(url) as triton:
        triton.load(model)


class Asking(Repeating):
    """A client that asks all the time and remembers which model versions answered."""

    def __init__(self, url: str) -> None:
        super().__init__(self._ask)
        self.url = url
        self.versions: list[str] = []

    def wait_for(self, version: str) -> None:
        """Wait for an answer of this version to a request that is sent from now on."""
        known = len(self.versions) + 1
        wait_until(lambda: version in self.versions[known:], 60, f"an answer of version {version}")

    def _ask(self, *_: int) -> None:
        tensor = triton_http.InferInput("input", [1, 3, 224, 224], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 3, 224, 224), np.float32))
        with triton_http.InferenceServerClient(self.url) as client:
            self.versions.append(client.infer(MODEL, [tensor]).get_response()["model_version"])


def next_version(model: Path, content: bytes, url: str) -> None:
    with staged(model, ["model.onnx"], serve=lambda _version: load(url, MODEL)) as (aside, _):
        file = aside / "model.onnx"
        file.write_bytes(content)
        says = {"file": file.name, "sha256": manifest.sha256(file)}
        (aside / manifest.MANIFEST).write_text(json.dumps(says))


@pytest.mark.promise("README: puts the new version into service without a lost request")
def test_a_new_version_and_a_rollback_switch_without_a_failed_request(lab_triton: Any, model: Path) -> None:
    with Asking(lab_triton.http_url) as asking:
        changed = onnx.load(model / "1" / "model.onnx")
        changed.producer_name = "another export"
        asking.wait_for("1")
        next_version(model, changed.SerializeToString(), lab_triton.http_url)
        asking.wait_for("2")
        rollback([model])
        load(lab_triton.http_url, MODEL)
        asking.wait_for("1")
    assert [version for version, _ in groupby(asking.versions)] == ["1", "2", "1"]


@pytest.mark.slow
def test_after_a_rollback_every_verb_reports_the_model_as_served(lab_triton: Any, model: Path) -> None:
    """Triton's list keeps a row for the version that is gone, beside that of the one that serves."""
    url = lab_triton.http_url
    next_version(model, (model / "1" / "model.onnx").read_bytes(), url)
    rollback([model])
    load(url, MODEL)
    with connect(url) as client:

        def states() -> dict[str, str]:
            rows = client.versions()
            return {row["version"]: row["state"] for row in rows if row["name"] == MODEL}

        wait_until(lambda: states() == {"1": "READY", "2": "UNAVAILABLE"}, 60, "version 2 is still there")
        assert client.describe(MODEL).version == "1"
    assert "the sample is" in ask_sample(url, "food11", MODEL)
    subject = Examined((lab_triton.repository,), "127.0.0.1", {}, url, True, {"FOOD11_MODEL_NAME": MODEL})
    findings = [finding for check in (served, answers) for finding in check(subject)]
    about_it = [str(finding) for finding in findings if MODEL in str(finding) and finding.level != "ok"]
    assert about_it == []
    assert any(f"{MODEL} answers: the sample is" in str(finding) for finding in findings)


def test_kept_connections_are_answered_while_a_model_loads(lab_triton: Any) -> None:
    """Over HTTP, Triton loads it in the thread that answers them: they waited until it was loaded."""
    folder = lab_triton.repository / "slow_to_load"
    python_model(folder, SLOW_TO_LOAD)
    clients = [http.client.HTTPConnection(lab_triton.http_url, timeout=60) for _ in range(24)]
    answered = [0] * len(clients)

    def ask(client: int, _: int) -> None:
        clients[client].request("GET", "/v2/health/live")
        clients[client].getresponse().read()
        answered[client] += 1

    ports = lab_triton.options.http_port, lab_triton.options.grpc_port
    with (
        run_file.run_file_for(ports, {}),
        Repeating(ask, len(clients), every_s=0.05),
        ThreadPoolExecutor(1) as pool,
    ):
        wait_until(lambda: all(answered), 60, "no answer to some client")
        loading = pool.submit(load, lab_triton.http_url, "slow_to_load")
        try:
            wait_until((folder / "began").exists, 60, "the model does not load")
            aims = [number + 2 for number in answered]
            wait_until(lambda: all(map(int.__ge__, answered, aims)), 60, "some connections wait")
            assert not loading.done()
        finally:
            (folder / "go").touch()
        loading.result()
    for client in clients:
        client.close()
    with connect(lab_triton.http_url) as triton:
        triton.unload("slow_to_load")
    shutil.rmtree(folder)


@pytest.mark.promise("models: if it does not answer as the network, the version before is back")
def test_a_version_that_triton_refuses_is_withdrawn_and_the_old_one_serves_on(
    lab_triton: Any, model: Path
) -> None:
    with Asking(lab_triton.http_url) as asking:
        with pytest.raises(TritonRefused):
            next_version(model, b"no model at all", lab_triton.http_url)
        asking.wait_for("1")
    assert set(asking.versions) == {"1"}
    assert version_numbers(model) == (1,)


def gourmet_rollback(server: Any, name: str, *more: str) -> Result:
    return gourmet("rollback", name, *more, "--url", server.http_url, "--to", server.repository)


def test_a_rollback_reports_the_answer_of_the_version_before(lab_triton: Any, model: Path) -> None:
    next_version(model, (model / "1" / "model.onnx").read_bytes(), lab_triton.http_url)
    done = gourmet_rollback(lab_triton, MODEL)
    assert done.exit_code == 0, done.output
    assert f"{MODEL} answers: the sample is " in done.output
    assert f"{MODEL}: version 2 is withdrawn, version 1 serves" in done.output
    assert version_numbers(model) == (1,)
    done = gourmet_rollback(lab_triton, MODEL, "--undo")
    assert done.exit_code == 0, done.output
    assert f"{MODEL}: version 2 is back, it serves" in done.output
    with connect(lab_triton.http_url) as client:
        assert client.describe(MODEL).version == "2"


KILLED = """
import os, signal, sys
from pathlib import Path
from gourmet.repository.deploy import rollback
from gourmet.stack.connect import connect

def served(versions):
    for model in versions:
        with connect(sys.argv[2]) as triton:
            triton.load(model.name)
    os.kill(os.getpid(), signal.SIGKILL)

rollback([Path(sys.argv[1])], served)
"""


def test_after_a_killed_rollback_the_next_verb_has_triton_serve_what_was_there_before(
    lab_triton: Any, model: Path
) -> None:
    next_version(model, (model / "1" / "model.onnx").read_bytes(), lab_triton.http_url)
    subprocess.run([sys.executable, "-P", "-c", KILLED, model, lab_triton.http_url], check=False)
    with connect(lab_triton.http_url) as client:
        assert client.describe(MODEL).version == "1"
        done = gourmet_rollback(lab_triton, MODEL, "--undo")
        assert f"a verb was killed while it changed {MODEL}" in done.output
        assert client.describe(MODEL).version == "2"
    assert version_numbers(model) == (1, 2)


def replaced(model: Path, number: int, content: bytes) -> None:
    """Another file as a version, with the manifest that says it is the right one."""
    (model / str(number) / "model.onnx").write_bytes(content)
    says = {"file": "model.onnx", "sha256": manifest.sha256(model / str(number) / "model.onnx")}
    (model / str(number) / manifest.MANIFEST).write_text(json.dumps(says))


def without_answers(content: bytes) -> bytes:
    """The same network, whose scores are not numbers."""
    changed = onnx.load_from_string(content)
    for weights in changed.graph.initializer:
        if (values := numpy_helper.to_array(weights)).dtype == np.float32:
            weights.CopyFrom(numpy_helper.from_array(values * np.float32(np.nan), weights.name))
    return changed.SerializeToString()


def test_a_rollback_to_a_version_that_does_not_answer_changes_nothing(lab_triton: Any, model: Path) -> None:
    good = (model / "1" / "model.onnx").read_bytes()
    next_version(model, good, lab_triton.http_url)
    replaced(model, 1, without_answers(good))
    before = everything(model)
    done = gourmet_rollback(lab_triton, MODEL)
    assert done.exit_code == 1, done.output
    assert "serves" not in done.output
    assert everything(model) == before
    with connect(lab_triton.http_url) as client:
        assert client.describe(MODEL).version == "2"
    assert "the sample is" in ask_sample(lab_triton.http_url, "food11", MODEL)
