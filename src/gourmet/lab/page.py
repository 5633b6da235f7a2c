"""A second web app for the running Triton, with another model, and the times on its cards."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from gourmet.errors import GourmetError
from gourmet.lab import exercises
from gourmet.lab.measuring import Figure, in_turns, times_as_long
from gourmet.serving.preflight import free_ports
from gourmet.serving.processes import http_ok, wait_until

_READY_WITHIN_S: Final = 60.0
_BOUNDARY: Final = "a-photo-of-the-lab"


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
        wait_until(self._is_ready, _READY_WITHIN_S, f"the page of {model} did not answer")

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


def cards(ours: Page, theirs: Page, photo: bytes, name: str, count: int = 20) -> Figure:
    """Return our page's time on the card divided by theirs, with uploads in turns."""
    pages = (partial(lambda page: page.card(photo)["timings_ms"][name], page) for page in (ours, theirs))
    return times_as_long(*in_turns(count, *pages))
