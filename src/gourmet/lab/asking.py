"""Requests of a notebook: to models that generate text, and to a second web app with another model."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from gourmet.contracts import GeneratedText
from gourmet.errors import GourmetError
from gourmet.lab import exercises
from gourmet.lab.measuring import Figure, in_turns, times_as_long
from gourmet.stack.connect import connect
from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import http_ok, wait_until
from gourmet.systems import registry

_TIMEOUT_S: Final = 60.0
_BOUNDARY: Final = "a-photo-of-the-lab"
_UPLOADS: Final = 20

# A text, or a picture as a file.
Example = str | bytes


def ask(model: str, example: Example) -> GeneratedText:
    """Return the whole answer of a served model."""
    with connect(exercises.current().url, _TIMEOUT_S) as triton:
        info = triton.describe(model)
        system = registry.generation(info.system)
        return system.generated(
            triton.infer(model, system.request_inputs(_sent(example), info)).outputs, info
        )


def pieces(model: str, example: Example) -> list[tuple[float, str]]:
    """Return each piece of a streamed answer, with its milliseconds after the request."""
    with connect(exercises.current().url, _TIMEOUT_S) as triton:
        info = triton.describe(model)
        system = registry.generation(info.system)
        began = time.perf_counter()
        return [
            (1000 * (time.perf_counter() - began), system.generated(outputs, info).text)
            for outputs in triton.stream(info, system.request_inputs(_sent(example), info))
            if outputs
        ]


@contextmanager
def keeping_busy(model: str, example: Example, clients: int) -> Iterator[None]:
    """Let `clients` clients ask about `example` until the block ends."""
    enough = threading.Event()

    def ask_again() -> None:
        while not enough.is_set():
            ask(model, example)

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_again) for _ in range(clients)]
        try:
            yield
        finally:
            enough.set()
        for client in asking:
            client.result()


def _sent(example: Example) -> bytes:
    return example.encode() if isinstance(example, str) else example


class Page:
    """A web app that asks `model`; leave the block to stop it."""

    def __init__(self, model: str) -> None:
        (port,) = free_ports(1)
        self.model, self.url = model, f"http://127.0.0.1:{port}"
        command = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", "--web-only", f"--port={port}"]
        env = {**os.environ, "FOOD11_MODEL_NAME": model, "TRITON_SERVER_URL": exercises.current().url}
        self._process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        exercises.current().at_the_end(self._process.pid)
        wait_until(self._is_ready, _TIMEOUT_S, f"the page of {model} did not answer")

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            assert self._process.stdout
            raise GourmetError(f"the page of {self.model} ended: {self._process.stdout.read().strip()}")
        return http_ok(f"{self.url}/readyz")

    def card(self, photo: bytes) -> dict[str, Any]:
        """Upload a photo; return the answer as JSON."""
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="photo.jpg"\r\n\r\n'
        body = head.encode() + photo + f"\r\n--{_BOUNDARY}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}", "Accept": "application/json"}
        with urlopen(Request(f"{self.url}/predict", body, headers), timeout=30) as answer:
            return dict(json.load(answer))

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def __repr__(self) -> str:
        return f"{self.url} asks {self.model}"


def cards(ours: Page, theirs: Page, photo: bytes, name: str) -> Figure:
    """Return our page's time on the card divided by theirs, with uploads in turns."""
    pages = (partial(lambda page: page.card(photo)["timings_ms"][name], page) for page in (ours, theirs))
    return times_as_long(*in_turns(_UPLOADS, *pages))
