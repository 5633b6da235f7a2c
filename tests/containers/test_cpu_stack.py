"""The CPU stack classifies a photo, keeps to itself, knows when it is ill and leaves nothing behind.

It is started by scripts/containers/cpu-stack.sh, once for each model, on free ports and as a project of
its own. Where there is no container engine, the tests are skipped with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.web_app import Site, WebReply

from gourmet.serving.preflight import free_ports
from gourmet.systems.food11 import contract

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "containers" / "cpu-stack.sh"
NO_ENGINE = 3
SERVICES = ("triton", "flask", "proxy", "jupyter")


@dataclass(frozen=True)
class Stack:
    """A running stack, and ways to look at it from outside and from within."""

    engine: str
    project: str
    model: str
    web_port: int
    http_port: int
    grpc_port: int
    metrics_port: int
    jupyter_port: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    admin_key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def script(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "COMPOSE_PROJECT_NAME": self.project,
            "FOOD11_MODEL_NAME": self.model,
            "TRITON_SERVER_URL": "",
            "WEB_PORT": str(self.web_port),
            "TRITON_HTTP_PORT": str(self.http_port),
            "TRITON_GRPC_PORT": str(self.grpc_port),
            "TRITON_METRICS_PORT": str(self.metrics_port),
            "JUPYTER_PORT": str(self.jupyter_port),
            "JUPYTER_TOKEN": self.token,
            "TRITON_ADMIN_KEY": self.admin_key,
        }
        return run(str(SCRIPT), *arguments, **settings)

    def up(self) -> None:
        started = self.script("up", *SERVICES)
        assert started.returncode == 0, started.stdout + started.stderr

    def container(self, service: str) -> str:
        return self.script("container", service).stdout.strip()

    def inside(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container."""
        return run(self.engine, "exec", self.container(service), *command)

    def port_bindings(self, service: str) -> set[str]:
        """The host's addresses that reach a service, like 127.0.0.1:8000."""
        shown = run(self.engine, "port", self.container(service)).stdout
        return {line.rpartition(" ")[2] for line in shown.splitlines()}

    def left_over(self) -> list[str]:
        """The project's containers, networks and volumes, as their engine lists them."""
        label = f"label=com.docker.compose.project={self.project}"
        containers = run(self.engine, "ps", "--all", "--quiet", "--filter", label).stdout.split()
        networks = run(self.engine, "network", "ls", "--format", "{{.Name}}").stdout.split()
        volumes = run(self.engine, "volume", "ls", "--format", "{{.Name}}").stdout.split()
        return containers + [name for name in networks + volumes if name.startswith(self.project)]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def engine() -> str:
    found = run(str(SCRIPT), "engine")
    if found.returncode == NO_ENGINE:
        pytest.skip(found.stderr.strip())
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.fixture(scope="session")
def images(engine: str) -> None:
    """The images of the working tree."""
    built = run(str(SCRIPT), "build")
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]


@pytest.fixture(scope="module", params=["food_classifier", "food_classifier_onnx"])
def stack(request: pytest.FixtureRequest, engine: str, images: None) -> Iterator[Stack]:
    """The whole stack with the page answered by one of the models."""
    project = f"gourmet-test-{uuid.uuid4().hex[:8]}"
    running = Stack(engine, project, request.param, *free_ports(5))
    try:
        running.up()
        yield running
    finally:
        running.script("down")


def classify(stack: Stack) -> WebReply:
    """Upload the bundled sample to the published port, as a browser's form would."""
    return Site(stack.web_port).predict(contract.SYSTEM.sample())


def test_a_photo_is_classified_through_the_published_port(stack: Stack) -> None:
    answer = classify(stack)
    assert answer.status == 200, answer.body
    said = answer.json
    assert said["model"]["name"] == stack.model
    assert said["label"] in contract.SYSTEM.labels
    assert said["top"][0] == {"label": said["label"], "probability": said["probability"]}
    assert len(said["top"]) == 5
    assert 1 / len(contract.SYSTEM.labels) < said["probability"] <= 1


def test_words_of_a_translation_come_through_the_published_port_one_after_another(stack: Stack) -> None:
    asked = json.dumps({"text": "Я люблю чай, а мой брат пьёт только воду. " * 20, "stream": True}).encode()
    url = f"http://127.0.0.1:{stack.web_port}/api/v1/translate"
    request = urllib.request.Request(url, asked, {"Content-Type": "application/json"})
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=30) as answer:
        came = [(line, time.monotonic() - began) for line in answer if line.startswith(b"event: ")]
    assert (came[0][0], came[-1][0]) == (b"event: piece\n", b"event: done\n")
    assert came[0][1] < came[-1][1] / 2, "the proxy waited for the whole answer"


def test_both_models_are_served_to_those_who_ask_triton_itself(stack: Stack) -> None:
    for model in ("food_classifier", "food_classifier_onnx"):
        assert Site(stack.http_port).request("GET", f"/v2/models/{model}/ready").status == 200
    assert b"nv_inference_count" in Site(stack.metrics_port).request("GET", "/metrics").body


def test_ports_of_triton_and_the_lab_are_open_on_loopback_only(stack: Stack) -> None:
    for service, ports in (
        ("triton", {stack.http_port, stack.grpc_port, stack.metrics_port}),
        ("jupyter", {stack.jupyter_port}),
    ):
        shown = stack.port_bindings(service)
        assert shown == {f"127.0.0.1:{port}" for port in ports}
    assert stack.port_bindings("flask") == set()


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_runs_as_root(stack: Stack, service: str) -> None:
    asked = stack.inside(service, "id", "-u")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip() == ("101" if service == "proxy" else "1000")


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ("triton", "/models/food_classifier/1/new"),
        ("triton", "/opt/gourmet/new"),
        ("triton", "/home/new"),
        ("flask", "/srv/app/new"),
        ("flask", "/home/new"),
        ("proxy", "/etc/nginx/new"),
    ],
)
def test_models_and_programs_cannot_be_written_to(stack: Stack, service: str, path: str) -> None:
    asked = stack.inside(service, "touch", path)
    assert asked.returncode != 0
    assert "Read-only file system" in asked.stderr


def test_no_service_holds_a_capability(stack: Stack) -> None:
    for service in SERVICES:
        status = stack.inside(service, "cat", "/proc/1/status").stdout
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status


def test_the_web_image_has_no_torch_and_the_triton_image_no_flask(stack: Stack) -> None:
    for service, missing in (("flask", "torch"), ("flask", "onnxruntime"), ("triton", "flask")):
        asked = stack.inside(service, "python3", "-c", f"import {missing}")
        assert f"No module named '{missing}'" in asked.stderr


def test_the_lab_asks_for_its_token(stack: Stack) -> None:
    lab, contents = Site(stack.jupyter_port), "/api/contents"
    assert lab.request("GET", contents).status == 403
    assert lab.request("GET", contents, Authorization="token wrong").status == 403
    assert lab.request("GET", contents, Authorization=f"token {stack.token}").status == 200


def test_the_lab_has_both_kernels_and_measures_triton(stack: Stack) -> None:
    kernels = stack.inside("jupyter", "jupyter", "kernelspec", "list").stdout
    assert "bash" in kernels
    assert "python3" in kernels
    load = "-u triton:8000 -m food_classifier_onnx --shape input:3,224,224 --concurrency-range 2"
    # Steady or not is the machine's business; one short window says that it works.
    window = "--measurement-interval 1000 --max-trials 3 --stability-percentage 999"
    for program in (["perf_analyzer"], ["gourmet", "perf-analyzer"]):
        measured = stack.inside("jupyter", *program, *load.split(), *window.split())
        assert measured.returncode == 0, measured.stdout + measured.stderr
        assert "Concurrency: 2, throughput: " in measured.stdout


def test_the_lab_changes_a_served_models_config(stack: Stack) -> None:
    for change in (["--instances", "1"], ["--instances", "2"]):
        changed = stack.inside("jupyter", "gourmet", "config", "food_classifier_onnx", *change)
        assert changed.returncode == 0, changed.stdout + changed.stderr
        config = Site(stack.http_port).request("GET", "/v2/models/food_classifier_onnx/config").json
        assert config["instance_group"][0]["count"] == int(change[1])


def test_health_checks_notice_that_the_model_is_gone_and_that_it_is_back(stack: Stack) -> None:
    triton, model = Site(stack.http_port), f"/v2/repository/models/{stack.model}"
    assert stack.script("health", "triton").returncode == 0
    assert triton.request("POST", f"{model}/unload", "{}").status == 403
    assert triton.request("POST", f"{model}/unload", "{}", gourmet_admin_key=stack.admin_key).status == 200
    try:
        asked = stack.inside("triton", "python3", "/opt/gourmet/ask_models.py")
        assert asked.returncode == 1
        assert stack.model in asked.stderr
        assert classify(stack).status == 503
        time.sleep(1.1)  # an answer of /readyz is kept for a second
        assert Site(stack.web_port).request("GET", "/readyz").status == 503
        assert stack.script("health", "proxy").returncode == 0
    finally:
        assert triton.request("POST", f"{model}/load", "{}", gourmet_admin_key=stack.admin_key).status == 200
    time.sleep(1.1)
    for service in ("triton", "flask"):
        assert stack.script("health", service).returncode == 0
    assert classify(stack).status == 200


def test_down_leaves_nothing_behind(stack: Stack) -> None:
    # The last test of each stack: it takes it down.
    assert stack.left_over(), "the stack's containers and its network should be listed"
    stopped = stack.script("down")
    assert stopped.returncode == 0, stopped.stderr
    assert stack.left_over() == []
