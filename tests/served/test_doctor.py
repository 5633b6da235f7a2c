"""`gourmet doctor`, and the containers' health check, with models that are well, broken, late or hang."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.triton import MODELS, ROOT, triton_server
from tritonclient.utils import InferenceServerException

from gourmet.doctor import CHECKS, Examined, examine
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import wait_until
from gourmet.systems.food11 import contract


def subject_of(running: Any, **environment: str) -> Examined:
    options = running.options
    return Examined((running.repository,), options.host, options.ports, running.http_url, True, environment)


def lines(check: str, subject: Examined) -> list[str]:
    return [f"{finding.level} {finding}" for finding in CHECKS[check](subject)]


def test_a_healthy_stack_has_no_failure(triton: Any) -> None:
    subject = subject_of(triton)
    findings = [(name, finding) for name, finding in examine(subject) if name != "packages"]
    assert [str(result) for _, result in findings if result.level == "fail"] == []
    cause = {name: finding.cause for name, finding in findings}
    assert "held by the running stack" in cause["ports"]
    assert cause["server"].endswith("server 2.51.0")
    assert cause["served"].startswith("ready: ")
    answering = {result.cause.split(" answers: ")[0] for name, result in findings if name == "answers"}
    assert answering == {"food_classifier", "digits", "translator"}


def test_a_missing_server_at_the_given_address_is_a_failure(triton: Any) -> None:
    nowhere = replace(subject_of(triton), url=f"127.0.0.1:{free_ports(1)[0]}")
    findings = [finding for name, finding in examine(nowhere) if name == "server"]
    assert [(finding.level, finding.fix) for finding in findings] == [("fail", "start one with `gourmet up`")]


@pytest.fixture(scope="module")
def broken_lab(onnx_lab: Any, lab_triton: Any) -> Iterator[Any]:
    """The lab with models that cannot be loaded, were never loaded, or have another version on disk."""
    source = DEFAULT_REPOSITORY / "food_classifier_int8"
    for name in ("doctor_broken", "doctor_newer", "doctor_older"):
        model = Path(shutil.copytree(source, onnx_lab.repository / name))
        config = (model / "config.pbtxt").read_text()
        (model / "config.pbtxt").write_text(config.replace("food_classifier_int8", name))
    with (onnx_lab.repository / "doctor_broken" / "1" / "model.onnx").open("ab") as file:
        file.write(b"tampered")
    with pytest.raises(InferenceServerException, match="its manifest says"):
        onnx_lab.client.load_model("doctor_broken")
    onnx_lab.client.load_model("doctor_newer")
    shutil.copytree(onnx_lab.repository / "doctor_newer" / "1", onnx_lab.repository / "doctor_newer" / "2")
    older = onnx_lab.repository / "doctor_older"
    shutil.copytree(older / "1", older / "2")
    onnx_lab.client.load_model("doctor_older")
    shutil.rmtree(older / "2")
    held_back = 'parameters { key: "load" value: { string_value: "asked" } }'
    for name, config in (("doctor_asleep", ""), ("doctor_held_back", held_back)):
        onnx_lab.put(name, "(float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }", config)
    yield lab_triton
    for name in ("doctor_newer", "doctor_older"):
        onnx_lab.client.unload_model(name)
    for name in ("doctor_broken", "doctor_newer", "doctor_older", "doctor_asleep", "doctor_held_back"):
        shutil.rmtree(onnx_lab.repository / name)


def test_models_that_are_not_served_are_named_with_the_reason(broken_lab: Any) -> None:
    about_doctor_models = [line for line in lines("served", subject_of(broken_lab)) if "doctor_" in line]
    (broken,) = [line for line in about_doctor_models if "doctor_broken" in line and line.startswith("fail")]
    assert "did not load (" in broken
    assert "its manifest says" in broken
    assert "warn doctor_asleep is not loaded (never requested)" in " ".join(about_doctor_models)
    assert "ok loaded when a verb asks: doctor_held_back" in about_doctor_models
    for name, ready, newest in (("doctor_newer", 1, 2), ("doctor_older", 2, 1)):
        words = f"warn {name} serves version {ready}, but version {newest} is the latest on disk: load it"
        assert words in " ".join(about_doctor_models)


def test_a_configured_model_that_does_not_answer_is_a_failure(broken_lab: Any) -> None:
    subject = subject_of(broken_lab, **{contract.SYSTEM.model_variable: "doctor_broken"})
    (line,) = [line for line in lines("answers", subject) if "doctor_broken" in line]
    assert line.startswith("fail the model 'doctor_broken' is not ready (UNAVAILABLE, Internal: ")
    assert "its manifest says" in line
    assert "initialize" not in line  # Python's own lines of code


def test_a_program_that_is_not_triton_on_the_port_is_a_failure(triton: Any, tmp_path: Path) -> None:
    """Another HTTP server on Triton's port answers with pages."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        port = other.server_port
        subject = replace(subject_of(triton), ports={"--http-port": port}, url=f"127.0.0.1:{port}")
        failures = {name: str(finding) for name, finding in examine(subject) if finding.level == "fail"}
        other.shutdown()
    assert f"port {port} of 127.0.0.1 is in use" in failures["ports"]
    assert "server" in failures


# The health check of the containers

SCRIPT = (ROOT / "scripts" / "containers" / "ask_models.py").read_text()
SLEEPS = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("it slept")) for _ in requests]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "ends"), [(600, True), (4, False)], ids=["hangs", "is late"])
def test_a_container_whose_model_hangs_ends_at_its_sixth_health_check(
    seconds: float, ends: bool, tmp_path: Path
) -> None:
    model = tmp_path / "models" / "food_classifier"
    shutil.copytree(MODELS / "food_classifier", model)
    (model / "1" / "model.py").write_text(SLEEPS.format(seconds=seconds))
    server = triton_server(model.parent)
    options, triton = server.options, server.start()
    try:
        server.wait_until_live()
        here = {"ADDRESS": f'"{options.http_url}"', "TIMEOUT_S": "3.0", "FIRST_PROCESS": str(triton.pid)}
        script = SCRIPT
        for name, value in here.items():
            script = re.sub(rf"^{name} = .*", f"{name} = {value}", script, flags=re.MULTILINE)
        for _ in range(6):
            assert triton.exit_status() is None
            checked = subprocess.run(
                [sys.executable, "-P", "-c", script],
                env={**os.environ, "TMPDIR": str(tmp_path)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert checked.returncode == 1
            assert "food_classifier does not answer: Triton did not answer within 3 s" in checked.stderr
        if ends:
            wait_until(lambda: triton.exit_status() is not None, 60, "it was not ended")
        else:
            assert triton.exit_status() is None
    finally:
        server.close()
