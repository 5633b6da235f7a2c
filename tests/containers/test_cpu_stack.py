"""The CPU stack classifies a photo, keeps to itself, knows when it is ill and leaves nothing behind.

It is started by scripts/containers/cpu-stack.sh, once, on free ports and as a project of its own. Where there
is no container engine, the tests are skipped with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from support.eventually import eventually
from support.lab_notebooks import WIDE, notebook
from support.needs import absent
from support.tls import Certificates
from support.web_app import Site, WebReply, form

from gourmet.stack.preflight import free_ports
from gourmet.systems.food11 import contract

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "containers" / "cpu-stack.sh"
NO_ENGINE = 3
TO_FILE = ("sh", "-c", "cat >$0.ipynb")
SERVICES = ("triton", "triton-ports", "flask", "proxy", "jupyter")


@dataclass(frozen=True)
class Stack:
    """A running stack, and ways to look at it from outside and from within."""

    engine: str
    project: str
    web_port: int
    tls_port: int
    http_port: int
    grpc_port: int
    metrics_port: int
    jupyter_port: int
    home: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    admin_key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def script(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "COMPOSE_PROJECT_NAME": self.project,
            "FOOD11_MODEL_NAME": "",
            "TRITON_SERVER_URL": "",
            "WEB_PORT": str(self.web_port),
            "WEB_TLS_PORT": str(self.tls_port),
            "TRITON_HTTP_PORT": str(self.http_port),
            "TRITON_GRPC_PORT": str(self.grpc_port),
            "TRITON_METRICS_PORT": str(self.metrics_port),
            "JUPYTER_PORT": str(self.jupyter_port),
            "JUPYTER_TOKEN": self.token,
            "TRITON_ADMIN_KEY": self.admin_key,
            "KEEP_CORRECTIONS": "/corrections",
            "GOURMET_HOME": str(self.home),
        }
        return run(str(SCRIPT), *arguments, **settings | more)

    def up(self) -> None:
        started = self.script("up", *SERVICES)
        assert started.returncode == 0, started.stdout + started.stderr

    def container(self, service: str) -> str:
        return self.script("container", service).stdout.strip()

    def made_anew(self, service: str, **more: str) -> None:
        """Put another container in the place of a service's, by the settings and these."""
        done = self.script("again", service, **more)
        assert done.returncode == 0, done.stdout + done.stderr

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


def run(*command: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, **environment}
    return subprocess.run(
        command, cwd=ROOT, env=settings, input=given, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def engine() -> str:
    found = run(str(SCRIPT), "engine")
    if found.returncode == NO_ENGINE:
        absent(found.stderr.strip())
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.fixture(scope="session")
def images(engine: str) -> None:
    """The images of the working tree."""
    built = run(str(SCRIPT), "build")
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]


@pytest.fixture(scope="module")
def stack(engine: str, images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack, the lab with it, and a user's model whose newest version is damaged."""
    project, home = f"gourmet-test-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("home")
    (home / "systems").mkdir()
    spare = shutil.copytree(ROOT / "triton" / "models" / "onnx-mnist-cpu", home / "models" / "spare")
    config = spare / "config.pbtxt"
    config.write_text(config.read_text().replace("onnx-mnist-cpu", "spare").replace('"asked"', '""'))
    damaged = shutil.copytree(spare / "1", spare / "2") / "model.onnx"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    running = Stack(engine, project, *free_ports(6), home)
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
    assert said["model"]["name"] == "food_classifier"
    assert said["label"] in contract.SYSTEM.labels
    assert said["top"][0] == {"label": said["label"], "probability": said["probability"]}
    assert len(said["top"]) == 5
    assert 1 / len(contract.SYSTEM.labels) < said["probability"] <= 1


def test_words_of_a_translation_come_through_the_published_port_one_after_another(stack: Stack) -> None:
    asked = json.dumps({"text": "Я люблю чай, а мой брат пьёт только воду. " * 20, "stream": True}).encode()
    head = (
        "POST /api/v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(asked)}\r\n\r\n"
    ).encode()

    def comes_before_the_end() -> bool:
        """Whether a piece is there while the end is not; who reads late on a busy machine may find both."""
        with socket.create_connection(("127.0.0.1", stack.web_port), 60) as connection:
            connection.sendall(head + asked)
            came = connection.recv(65_536)
            while b"event: piece" not in came and b"event: done" not in came:
                more = connection.recv(65_536)
                assert more, came
                came += more
            early = b"event: done" not in came
            came += b"".join(iter(lambda: connection.recv(65_536), b""))
        assert b"event: done" in came, came
        return early

    eventually(comes_before_the_end, 60)


def test_both_models_are_served_to_those_who_ask_triton_itself(stack: Stack) -> None:
    for model in ("food_classifier", "food_classifier_onnx"):
        assert Site(stack.http_port).request("GET", f"/v2/models/{model}/ready").status == 200
    assert b"nv_inference_count" in Site(stack.metrics_port).request("GET", "/metrics").body


def test_ports_of_triton_and_the_lab_are_open_on_loopback_only(stack: Stack) -> None:
    for service, ports in (
        ("triton-ports", {stack.http_port, stack.grpc_port, stack.metrics_port}),
        ("jupyter", {stack.jupyter_port}),
    ):
        shown = stack.port_bindings(service)
        assert shown == {f"127.0.0.1:{port}" for port in ports}
    for service in ("triton", "flask"):
        assert stack.port_bindings(service) == set()


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


def test_triton_has_no_way_out(stack: Stack) -> None:
    # Connecting a datagram socket sends nothing: the kernel looks for a route.
    way_out = "import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
    asked = stack.inside("triton", "python3", "-c", way_out)
    assert "Network is unreachable" in asked.stderr
    assert stack.inside("jupyter", "python3", "-c", way_out).returncode == 0


def test_the_app_and_the_lab_reach_triton_and_not_each_other(stack: Stack) -> None:
    reach = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    for service, host, port, reached in (
        ("flask", "triton", "8000", True),
        ("jupyter", "triton", "8000", True),
        ("jupyter", "flask", "5000", False),
        ("flask", "jupyter", "8888", False),
    ):
        asked = stack.inside(service, "python3", "-c", reach, host, port)
        assert (asked.returncode == 0) == reached, (service, host, asked.stderr)


def test_the_lab_has_both_kernels_and_measures_triton(stack: Stack) -> None:
    kernels = stack.inside("jupyter", "jupyter", "kernelspec", "list").stdout
    assert "bash" in kernels
    assert "python3" in kernels
    onnx = "-u triton:8000 -m food_classifier_onnx --shape input:3,224,224 --concurrency-range 2"
    photos = "-m food_classifier --concurrency-range 2"
    # Steady or not is the machine's business; twenty requests say that it works.
    window = "--measurement-mode count_windows --measurement-request-count 20"
    window += " --max-trials 3 --stability-percentage 999"
    for program in (f"perf_analyzer {onnx}", f"gourmet perf-analyzer {photos}"):
        measured = stack.inside("jupyter", *program.split(), *window.split())
        assert measured.returncode == 0, measured.stdout + measured.stderr
        assert "Concurrency: 2, throughput: " in measured.stdout


@pytest.mark.parametrize("name", ["triton", "loops", "digits"])
def test_a_notebook_of_the_lab_is_answered_from_begin_to_end_and_handed_in(stack: Stack, name: str) -> None:
    filled_in = nbformat.writes(notebook(f"{name}.ipynb", WIDE))
    written = run(stack.engine, "exec", "-i", stack.container("jupyter"), *TO_FILE, name, given=filled_in)
    assert written.returncode == 0, written.stderr
    run_it = (
        f"GOURMET_LAB_SECONDS=0.1 jupyter execute --inplace --timeout=600 {name}.ipynb && gourmet lab hand-in"
    )
    executed = stack.inside("jupyter", "sh", "-c", run_it)
    assert executed.returncode == 0, executed.stdout[-4000:] + executed.stderr[-4000:]
    book = json.loads(stack.inside("jupyter", "cat", f"{name}.ipynb").stdout)
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert not [cell["source"] for cell in code if not cell["execution_count"]]
    outputs = json.dumps([cell["outputs"] for cell in code])
    assert "not found" not in outputs, outputs
    # What a cell provokes names the student's own model; nothing else fails.
    errors = re.findall(r"Error: [^\\]*", outputs)
    assert [line for line in errors if not re.search("my_|no_mean|one_row|has no attribute", line)] == []
    asked = set(re.findall(r'predict\(\\"(\w+):', json.dumps(code)))
    page = stack.inside("jupyter", "cat", "hand-in.html").stdout
    assert asked
    assert asked == {key for key in asked if f"<h3>{key}: " in page}


def test_a_verb_of_the_lab_loads_a_model_for_study_by_itself(stack: Stack) -> None:
    shown = stack.inside("jupyter", "gourmet", "config", "onnx-mnist-cpu")
    assert shown.returncode == 0, shown.stderr
    assert "loading onnx-mnist-cpu" in shown.stderr
    asked = stack.inside("jupyter", "curl", "-sf", "triton_server:8000/v2/models/onnx-mnist-cpu/ready")
    assert asked.returncode == 0, "under the name of the published lab"


def test_the_lab_lists_the_systems_that_triton_serves(stack: Stack) -> None:
    shown = stack.inside("jupyter", "gourmet", "list", "--json")
    assert shown.returncode == 0, shown.stderr
    serving = {each["system"] for each in json.loads(shown.stdout) if each["state"] == "serves"}
    assert serving >= {"food11", "digits", "translator"}


def test_the_lab_changes_a_served_models_config_and_resets_it(stack: Stack) -> None:
    for change, count in ((["--instances", "1"], 1), (["--reset"], 2)):
        changed = stack.inside("jupyter", "gourmet", "config", "food_classifier_onnx", *change)
        assert changed.returncode == 0, changed.stdout + changed.stderr
        config = Site(stack.http_port).request("GET", "/v2/models/food_classifier_onnx/config").json
        assert config["instance_group"][0]["count"] == count


def test_health_checks_notice_that_the_model_is_gone_and_that_it_is_back(stack: Stack) -> None:
    triton, model = Site(stack.http_port), "/v2/repository/models/food_classifier"
    assert stack.script("health", "triton").returncode == 0
    assert triton.request("POST", f"{model}/unload", "{}").status == 403
    assert triton.request("POST", f"{model}/unload", "{}", gourmet_admin_key=stack.admin_key).status == 200
    try:
        asked = stack.inside("triton", "python3", "/opt/gourmet/ask_models.py")
        assert asked.returncode == 1
        assert "food_classifier" in asked.stderr
        assert classify(stack).status == 503
        eventually(lambda: Site(stack.web_port).request("GET", "/readyz").status == 503)
        assert stack.script("health", "proxy").returncode == 0
    finally:
        assert triton.request("POST", f"{model}/load", "{}", gourmet_admin_key=stack.admin_key).status == 200
    for service in ("triton", "flask"):
        eventually(lambda service=service: stack.script("health", service).returncode == 0, 60)
    assert classify(stack).status == 200


@pytest.mark.promise("operating: containers: the app is replaced for another model; killed")
def test_switching_the_pages_model_recreates_the_apps_container_alone(
    stack: Stack,
) -> None:
    others = {service: stack.container(service) for service in SERVICES if service != "flask"}
    before = stack.container("flask")

    def first_answer_of(model: str) -> bool:
        answer = classify(stack)
        # What the app or, in its place, nginx says tells when to ask again.
        assert answer.status == 200 or (answer.status == 503 and "retry-after" in answer.headers), answer
        return answer.status == 200 and answer.json["model"]["name"] == model

    for model in ("food_classifier_onnx", "food_classifier"):
        stack.made_anew("flask", FOOD11_MODEL_NAME=model)
        eventually(lambda model=model: first_answer_of(model), 60)
    assert stack.container("flask") != before
    assert {service: stack.container(service) for service in others} == others


def test_a_damaged_newest_version_falls_back_at_each_start_and_comes_back_from_a_backup(
    stack: Stack, tmp_path: Path
) -> None:
    triton = Site(stack.http_port)
    image = {"name": "input.1", "shape": [1, 1, 28, 28], "datatype": "FP32", "data": [0.5] * 784}

    def answer() -> list[float]:
        asked = triton.request("POST", "/v2/models/spare/infer", json.dumps({"inputs": [image]}))
        return asked.json["outputs"][0]["data"] if asked.status == 200 else []

    def version_1_serves() -> bool:
        with contextlib.suppress(OSError):
            config = triton.request("GET", "/v2/models/spare/config")
            return config.status == 200 and config.json["version_policy"] == {"specific": {"versions": [1]}}
        return False

    eventually(version_1_serves)
    before = answer()
    assert before
    backup = str(tmp_path / "models.tar.gz")
    assert run("tar", "-czf", backup, "-C", str(stack.home), "models").returncode == 0
    shutil.rmtree(stack.home / "models" / "spare")
    stack.made_anew("triton")
    eventually(lambda: stack.script("health", "triton").returncode == 0, 180)
    assert answer() == [], "it is gone"
    assert run("tar", "-xzf", backup, "-C", str(stack.home)).returncode == 0
    stack.made_anew("triton")
    eventually(version_1_serves, 180)
    assert answer() == before
    for service in ("triton", "flask"):
        eventually(lambda service=service: stack.script("health", service).returncode == 0, 180)


def test_a_correction_survives_a_new_container_and_comes_back_from_a_backup(stack: Stack) -> None:
    body, headers = form(contract.SYSTEM.sample())
    where = "/api/v1/corrections?label=Soup"
    corrected = Site(stack.web_port).request("POST", where, body, **headers)
    assert corrected.status in (200, 201), corrected.body

    def kept() -> str:
        return stack.inside(
            "flask", "sh", "-c", "cd /corrections && find . -type f -exec sha256sum {} +"
        ).stdout

    before = kept()
    assert ".png" in before or ".jpg" in before, before
    stack.made_anew("flask")
    assert kept() == before
    backup = stack.inside("flask", "sh", "-c", "tar -cz -C /corrections . | base64").stdout
    run(stack.engine, "rm", "-f", stack.container("flask"))
    removed = run(stack.engine, "volume", "rm", f"{stack.project}_corrections")
    assert removed.returncode == 0, removed.stderr
    assert stack.script("up", "flask").returncode == 0
    assert kept() == ""
    restore = ("sh", "-c", "base64 -d | tar -xz -C /corrections")
    restored = run(stack.engine, "exec", "-i", stack.container("flask"), *restore, given=backup)
    assert restored.returncode == 0, restored.stderr
    assert kept() == before


def test_with_a_certificate_the_proxy_reads_a_key_of_roots_and_answers_by_tls_alone(
    stack: Stack, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    signed, key = certificates.sign("here", "IP:127.0.0.1")
    folder = tmp_path / "mounted"
    folder.mkdir()
    shutil.copy(signed, folder / "fullchain.pem")
    shutil.copy(key, folder / "privkey.pem")
    (folder / "privkey.pem").chmod(0o600)
    stack.made_anew("proxy", OVERLAYS="docker-compose.tls.yaml", CERTIFICATES=str(folder))
    try:
        trusted = ssl.create_default_context(cafile=certificates.ca)
        place = f"https://127.0.0.1:{stack.tls_port}/"

        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(place, context=trusted) as page:
                return "Strict-Transport-Security" in page.headers
            return False

        eventually(answers, 60)
        sent_on = Site(stack.web_port).request("GET", "/")
        assert (sent_on.status, sent_on.headers["location"]) == (308, place)
        statuses = stack.inside("proxy", "sh", "-c", "grep -h ^Uid: /proc/[0-9]*/status").stdout
        assert len(set(statuses.splitlines())) > 1, "who speaks to visitors is not root"
    finally:
        stack.made_anew("proxy")
    eventually(lambda: stack.script("health", "proxy").returncode == 0, 60)


def test_down_leaves_nothing_behind(stack: Stack) -> None:
    # The last test: it takes the stack down.
    assert stack.left_over(), "the stack's containers and its network should be listed"
    stopped = stack.script("down")
    assert stopped.returncode == 0, stopped.stderr
    assert stack.left_over() == []
