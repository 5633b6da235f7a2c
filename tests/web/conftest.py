"""The real app under gunicorn, with several workers and threads, in front of a real Triton."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gourmet.serving.ports import free_ports
from gourmet.serving.triton_server import TritonOptions, TritonServer
from gourmet.systems.food11 import contract

MODELS = Path(__file__).parents[2] / "triton" / "models"
BOUNDARY = "----boundary-of-the-tests"

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
expect.set_options(timeout=60_000)
DESKTOP = {"width": 1280, "height": 900}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def form(data: bytes, name: str = "photo.jpg") -> tuple[bytes, dict[str, str]]:
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@dataclass
class WebApp:
    """A running gunicorn."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, fields)
            response = connection.getresponse()
            data = response.read()
        lowered = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, lowered, data, time.monotonic() - started)

    def predict(
        self, photo: bytes, accept: str = "application/json", *, pieces: int = 0, **headers: str
    ) -> Reply:
        """Send `photo` as a form, with a length or else in `pieces` of a chunked body."""
        body, content = form(photo)
        step = -(-len(body) // pieces) if pieces else 0
        sent = (body[at : at + step] for at in range(0, len(body), step)) if pieces else body
        return self.request("POST", "/predict", sent, Accept=accept, **content, **headers)

    def measured(self, name: str) -> dict[str, float]:
        """The metric's values by their only label."""
        text = self.request("GET", "/metrics").body.decode()
        return {
            label: float(value) for label, value in re.findall(rf'^{name}{{\w+="(\w+)"}} (\S+)', text, re.M)
        }

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


StartWeb = Callable[..., WebApp]


def start_web(log: Path, port: int, triton_url: str, **settings: str) -> WebApp:
    command = [
        *(sys.executable, "-m", "gunicorn", "--config", "python:app.gunicorn_conf"),
        *("--bind", f"127.0.0.1:{port}", "app:create_app()"),
    ]
    few = {"WEB_CONCURRENCY": "2", "MAX_AT_WORK": "4"}
    env = {**os.environ, "TRITON_SERVER_URL": triton_url, **few, **settings}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT)
    web = WebApp(port, process, log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            if web.request("GET", "/healthz").status == 200:
                return web
        time.sleep(0.1)
    web.stop()
    raise TimeoutError(f"gunicorn did not answer within 60 s: {log.read_text()}")


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWeb]:
    """Starts web apps that are stopped at the end of the run."""
    running: list[WebApp] = []

    def start_one(triton_url: str, **settings: str) -> WebApp:
        log = tmp_path_factory.mktemp("web") / "gunicorn.log"
        running.append(start_web(log, free_ports(1)[0], triton_url, **settings))
        return running[-1]

    yield start_one
    for web in running:
        web.process.send_signal(signal.SIGTERM)  # to all before waiting for any
    for web in running:
        web.stop()


@pytest.fixture(scope="session")
def python_web(start: StartWeb, triton: Any) -> WebApp:
    """The app that asks `food_classifier`, which takes the photo as it is."""
    # A heat map asks 246 times, and a machine with much else to do may take its time over them.
    return start(triton.http_url, FOOD11_MODEL_NAME="food_classifier", EXPLAIN_DEADLINE_S="300")


@pytest.fixture(scope="session")
def onnx_web(start: StartWeb, triton: Any) -> WebApp:
    """The app that asks `food_classifier_onnx`, which takes a tensor."""
    return start(triton.http_url, FOOD11_MODEL_NAME="food_classifier_onnx")


@pytest.fixture
def sleeping_triton(tmp_path: Path) -> Iterator[TritonServer]:
    """A Triton that was not started yet, with the one model that starts in a fraction of the others' time."""
    shutil.copytree(MODELS / "food_classifier_onnx", tmp_path / "models" / "food_classifier_onnx")
    http, grpc, metrics = free_ports(3)
    options = TritonOptions((tmp_path / "models",), http_port=http, grpc_port=grpc, metrics_port=metrics)
    server = TritonServer(options, lambda line: None)
    yield server
    server.close()


@pytest.fixture
def in_parallel() -> Callable[..., list[Any]]:
    def run(task: Callable[[Any], Any], items: list[Any], threads: int = 16) -> list[Any]:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(task, items))

    return run


@pytest.fixture(scope="session")
def sample() -> bytes:
    return contract.sample()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("no Chromium here: `apt-get install chromium`")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield chromium
        chromium.close()


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens pages, each in a browser of its own; afterwards none may have complained in its console.

    `forgiven`: words of complaints that the test is about, such as a network that is away.
    """
    contexts = []
    complaints: list[str] = []

    def open_page(url: str, *, forgiven: tuple[str, ...] = (), **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()

        def note(kind: str, text: str) -> None:
            # A refused photo is an HTTP error, which Chromium itself writes down.
            known = ("the server responded with a status of 4", *forgiven)
            if kind in ("error", "warning") and not any(words in text for words in known):
                complaints.append(text)

        page.on("console", lambda message: note(message.type, message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
