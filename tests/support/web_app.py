"""The real app under gunicorn, with several workers and threads, as a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOUNDARY = "----boundary-of-the-tests"


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class WebReply(HttpAnswer):
    seconds: float


def form(*photos: bytes) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a form with these, called 0.jpg and so on."""
    body = b""
    for number, photo in enumerate(photos):
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{number}.jpg"\r\n\r\n'
        body += head.encode() + photo + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode(), {
        "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"
    }


def post_head(length: int | None) -> bytes:
    """The head of a form of that length, or of one in chunks."""
    sized = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        "POST /predict HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\n{sized}\r\n\r\n"
    ).encode()


@dataclass
class Site:
    """Whatever answers HTTP on a port of loopback."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> WebReply:
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, fields)
            response = connection.getresponse()
            data = response.read()
        lowered = {name.lower(): value for name, value in response.getheaders()}
        return WebReply(response.status, lowered, data, time.monotonic() - started)

    def predict(
        self,
        photo: bytes,
        accept: str = "application/json",
        *,
        model: str = "",
        pieces: int = 0,
        **headers: str,
    ) -> WebReply:
        """Send `photo` to `model` as a form, with a length or else in `pieces` of a chunked body."""
        body, content = form(photo)
        step = -(-len(body) // pieces) if pieces else 0
        sent = (body[at : at + step] for at in range(0, len(body), step)) if pieces else body
        path = f"/predict?model={model}" if model else "/predict"
        return self.request("POST", path, sent, Accept=accept, **content, **headers)

    def measured(self, name: str) -> dict[str, float]:
        """The metric's values by their only label."""
        text = self.request("GET", "/metrics").body.decode()
        return {
            label: float(value) for label, value in re.findall(rf'^{name}{{\w+="(\w+)"}} (\S+)', text, re.M)
        }


@dataclass
class WebApp(Site):
    """A running gunicorn."""

    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


StartWeb = Callable[..., WebApp]


PRODUCT_CONFIG = "python:app.web.gunicorn_conf"


def start_web(
    log: Path, port: int, triton_url: str, *, config: str = PRODUCT_CONFIG, **settings: str
) -> WebApp:
    command = [
        *(sys.executable, "-m", "gunicorn", "--config", config),
        *("--bind", f"127.0.0.1:{port}", "app:create_app()"),
    ]
    # On a busy machine an answer may take a while: only tests of a deadline have a short one.
    usual = {"WEB_CONCURRENCY": "2", "MAX_AT_WORK": "4", "REQUEST_DEADLINE_S": "60"}
    env = {**os.environ, "TRITON_SERVER_URL": triton_url, **usual, **settings}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT)
    web = WebApp(port, process, log)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            if web.request("GET", "/healthz").status == 200:
                return web
        time.sleep(0.1)
    web.stop()
    raise TimeoutError(f"gunicorn did not answer within 120 s: {log.read_text()}")
