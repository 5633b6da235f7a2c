"""CPU time of the web app for one request: of this checkout, and of another in turns with it.

    .venv/bin/python -P benchmarks/request_cost.py
    .venv/bin/python -P benchmarks/request_cost.py --against ../before    # a checkout with a .venv of its own

Each app runs under gunicorn as `gourmet up` starts it, before the same Triton; a few kept connections send
the same request again and again, and what gunicorn's processes spent is divided by the number of requests.
CPU time suffers less from what else a machine does than throughput, and turns share what is left of that.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from PIL import Image

from gourmet.measure.server_probe import tree
from gourmet.repository import DEFAULT
from gourmet.serving.preflight import free_ports
from gourmet.serving.triton_server import TritonOptions, TritonServer
from gourmet.serving.waiting import http_ok, wait_until
from gourmet.systems.food11.contract import SYSTEM as FOOD

HERE: Final = Path(__file__).parents[1]
_CONNECTIONS: Final = 4
_MODELS: Final = ("food_classifier", "food_classifier_int8", "food_classifier_onnx")
# Of the size of a small photo that a phone or a page sends: 28 to 32 KB.
_PHOTO_BYTES: Final = range(28_000, 32_001)
_BOUNDARY: Final = "a-boundary"
# How Linux names the clock of another process's CPU time: clock_getcpuclockid(3).
_CPU_CLOCK: Final = 2


@dataclass(frozen=True)
class Question:
    """One kind of request, and how many of them make a turn."""

    name: str
    method: str
    path: str
    body: bytes
    requests: int


def photo() -> bytes:
    """The sample at 400×300, at whichever quality makes it as large as wanted."""
    picture = Image.open(io.BytesIO(FOOD.sample())).convert("RGB").resize((400, 300))
    for quality in range(60, 100):
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        if len(buffer.getvalue()) in _PHOTO_BYTES:
            return buffer.getvalue()
    raise ValueError(f"no quality makes the sample {_PHOTO_BYTES.start} to {_PHOTO_BYTES.stop} bytes long")


def questions(scale: float) -> list[Question]:
    part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="photo.jpg"\r\n\r\n'
    form = part.encode() + photo() + f"\r\n--{_BOUNDARY}--\r\n".encode()
    health = Question("/healthz", "GET", "/healthz", b"", int(2000 * scale))
    asked = [Question(name, "POST", f"/predict?model={name}", form, int(300 * scale)) for name in _MODELS]
    return [health, *asked]


@dataclass
class WebApp:
    name: str
    port: int
    pid: int

    def cost_ms(self, question: Question) -> float:
        """CPU milliseconds for one request, over a turn of them."""
        each = question.requests // _CONNECTIONS
        before = self._cpu_s()
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            list(pool.map(lambda _: self._ask(question, each), range(_CONNECTIONS)))
        spent_s = sum(seconds - before.get(pid, 0.0) for pid, seconds in self._cpu_s().items())
        return spent_s * 1000 / (each * _CONNECTIONS)

    def _cpu_s(self) -> dict[int, float]:
        """CPU time of each process by its own clock: /proc/<pid>/stat counts in hundredths of a second."""
        return {each.pid: time.clock_gettime(~each.pid << 3 | _CPU_CLOCK) for each in tree(self.pid)}

    def _ask(self, question: Question, times: int) -> None:
        headers = {"Accept": "application/json"}
        if question.body:
            headers["Content-Type"] = f"multipart/form-data; boundary={_BOUNDARY}"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            for _ in range(times):
                connection.request(question.method, question.path, question.body or None, headers)
                reply = connection.getresponse()
                answer = reply.read()
                if reply.status != http.HTTPStatus.OK:
                    raise RuntimeError(f"{self.name}: {question.path} was answered {reply.status} {answer!r}")


@contextlib.contextmanager
def running(checkout: Path, triton_url: str, log: Path) -> Iterator[WebApp]:
    port = free_ports(1)[0]
    command = [f"{checkout}/.venv/bin/python", "-P", "-m", "gunicorn", "--bind", f"127.0.0.1:{port}"]
    # Where it was before there was app/admission, for checkouts of then.
    config = "app.admission.gunicorn_conf" if (checkout / "app/admission").is_dir() else "app.gunicorn_conf"
    command += ["--config", f"python:{config}", "app:create_app()"]
    env = {**os.environ, "TRITON_SERVER_URL": triton_url, "WEB_CONCURRENCY": "2"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT)
    try:
        ready = f"http://127.0.0.1:{port}/readyz"
        wait_until(lambda: http_ok(ready), 60, f"the app of {checkout} is not ready; its log: {log}; not")
        yield WebApp(checkout.name, port, process.pid)
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def triton_at(url: str) -> Iterator[str]:
    """The Triton at `url`, or one that lives as long as the block."""
    if url:
        yield url
        return
    http_port, grpc_port, metrics_port = free_ports(3)
    options = TritonOptions((DEFAULT,), http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
    with TritonServer(options, lambda line: None) as server:
        server.wait_until_live(180)
        yield options.http_url


def measure(apps: Sequence[WebApp], asked: Sequence[Question], rounds: int) -> None:
    heading = ["CPU ms a request", *(app.name for app in apps)] + ["ratio"] * (len(apps) - 1)
    click.echo(f"| {' | '.join(heading)} |")
    click.echo("|" + "---|" * len(heading))
    for question in asked:
        costs: list[list[float]] = [[] for _ in apps]
        for number in range(rounds + 1):
            order = range(len(apps)) if number % 2 else reversed(range(len(apps)))
            for place in order:
                cost_ms = apps[place].cost_ms(question)
                if number:  # the first turn warms up
                    costs[place].append(cost_ms)
        cells = [_spread(values) for values in costs]
        for values in costs[1:]:
            cells.append(_spread([mine / theirs for mine, theirs in zip(costs[0], values, strict=True)]))
        click.echo(f"| {' | '.join([question.name, *cells])} |")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, with a .venv")
    parser.add_argument("--triton", default="", metavar="HOST:PORT", help="a Triton with the food models")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests of a turn")
    options = parser.parse_args()
    checkouts = [HERE, options.against.resolve()] if options.against else [HERE]
    python = f"Python {platform.python_version()}"
    click.echo(f"{python}, {os.cpu_count()} CPUs; medians of {options.rounds} rounds\n")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(triton_at(options.triton))
        apps = [
            stack.enter_context(running(checkout, url, folder / f"{number}.log"))
            for number, checkout in enumerate(checkouts)
        ]
        measure(apps, questions(options.scale), options.rounds)


if __name__ == "__main__":
    main()
