"""`gourmet up` as a user runs it: a process of its own, real ports, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gourmet.serving.ports import free_ports
from gourmet.serving.waiting import http_ok, wait_until
from gourmet.systems.food11 import contract

GOURMET = str(Path(sys.executable).with_name("gourmet"))
MODELS = Path(__file__).parents[2] / "triton" / "models"
HANGS = """
import time

class TritonPythonModel:
    def execute(self, requests):
        print("it hangs", flush=True)
        time.sleep(600)
"""


class Up:
    """A running `gourmet up` and what it has printed."""

    def __init__(
        self, *arguments: str, tmp: Path, env: dict[str, str] | None = None, within: tuple[str, ...] = ()
    ) -> None:
        """`within`: a command that becomes the one that it is given, such as `unshare`."""
        # Its own folder for what it puts together, so that what it leaves can be told from others'.
        self._tmp = tmp
        self.folders: set[str] = set()
        self.port, self.http, self.grpc, self.metrics = free_ports(4)
        ports = (
            f"--port={self.port}",
            f"--http-port={self.http}",
            f"--grpc-port={self.grpc}",
            f"--metrics-port={self.metrics}",
        )
        self.process = subprocess.Popen(
            [*within, GOURMET, "up", *ports, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp), **(env or {})},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def leftovers(self) -> list[Path]:
        """Files and shared memory of a process that is gone."""
        assert self.folders, "the process never made its folder, so this would find nothing"
        memory = [path for name in self.folders for path in Path("/dev/shm").glob(f"{name}*")]
        return [*memory, *self._tmp.iterdir()]

    def ended(self) -> bool:
        self.folders |= {path.name for path in self._tmp.glob("gourmet-triton-*")}
        return self.process.poll() is not None

    def said(self, text: str) -> bool:
        if self.ended():
            pytest.fail(f"gourmet up ended while {text!r} was waited for:\n{self.output}")
        return text in self.output

    def wait_for(self, text: str, timeout_s: float = 120) -> float:
        return wait_until(
            lambda: self.said(text), timeout_s, f"{text!r} was not said; said was:\n{self.output}"
        )

    def stop(self, number: signal.Signals = signal.SIGINT) -> float:
        started = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(30)
        took_s = time.monotonic() - started
        self.close()
        return took_s

    def close(self) -> None:
        self._reader.join(5)
        assert self.process.stdout
        self.process.stdout.close()

    def processes(self) -> list[int]:
        """Triton, its stubs, gunicorn and its workers, by the ports and folders in their command lines."""
        marks = {f"--http-port={self.http}", f"127.0.0.1:{self.port}", *self.folders}
        commands = self._commands()
        return [pid for pid, command in commands.items() if any(mark in command for mark in marks)]

    def triton_pid(self) -> int:
        found = [
            pid
            for pid, command in self._commands().items()
            if f"--http-port={self.http}" in command and "tritonserver" in command.split("\0")[0]
        ]
        assert len(found) == 1
        return found[0]

    def _commands(self) -> dict[int, str]:
        commands = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                commands[int(folder.name)] = (folder / "cmdline").read_text(errors="replace")
            except OSError:
                continue
        return commands


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> Up:
        tmp = tmp_path / f"tmp{len(started)}"
        tmp.mkdir()
        started.append(Up(*arguments, tmp=tmp, env=env))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.stop(signal.SIGTERM)


def predict(port: int) -> tuple[int, dict[str, str], dict]:
    """POST the sample the way the README's curl does."""
    boundary = "bowl"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="photo.jpg"\r\n\r\n'.encode()
        + contract.sample()
        + f"\r\n--{boundary}--\r\n".encode()
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/predict",
        body,
        {"Content-Type": f"multipart/form-data; boundary={boundary}", "Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.load(error)


@pytest.mark.parametrize(
    ("number", "model"),
    [(signal.SIGINT, "food_classifier"), (signal.SIGTERM, "food_classifier_onnx")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_photo_is_answered_and_a_signal_ends_everything(up, number, model) -> None:
    running = up(env={contract.MODEL_ENV: model})
    running.wait_for("the page http://127.0.0.1:")
    status, _, answer = predict(running.port)
    assert status == 200, answer
    assert answer["model"]["name"] == model
    assert answer["label"] in contract.LABELS
    assert len(answer["top"]) == 5
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/lab", timeout=30) as page:
        assert "set LAB_REPORTS" not in page.read().decode()  # it was told where reports are kept
    assert running.stop(number) < 10
    assert running.process.returncode == 0
    wait_until(lambda: not running.processes(), 5, f"still running: {running.processes()}")
    assert not running.leftovers()


def test_a_triton_that_dies_is_started_again_and_the_app_says_so_meanwhile(up) -> None:
    running = up()
    running.wait_for("the page http://127.0.0.1:")
    os.kill(running.triton_pid(), signal.SIGKILL)
    running.wait_for("starting it again")
    status, headers, answer = predict(running.port)
    assert status == 503
    assert int(headers["Retry-After"]) > 0
    assert answer["error"]["code"]
    wait_until(lambda: predict(running.port)[0] == 200, 60, "the app did not recover")
    # Those that the app does not need are loaded after that.
    ready = f"http://127.0.0.1:{running.http}/v2/models/food_classifier_onnx/ready"
    wait_until(lambda: http_ok(ready), 60, "the other models were not loaded again")
    assert running.stop() < 10


def test_one_broken_model_keeps_none_of_the_others_from_serving(up, models_copy) -> None:
    (models_copy / "food_classifier_onnx" / "1" / "model.onnx").write_bytes(b"no network")
    running = up("--triton-only", "--model-repository", str(models_copy))
    running.wait_for("the model 'food_classifier_onnx' did not load, the others serve:")
    running.wait_for("ready after")
    assert http_ok(f"http://127.0.0.1:{running.http}/v2/models/food_classifier/ready")


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """What `gourmet up` says where it must not start anything."""
    done = subprocess.run(
        [GOURMET, "up", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
        check=False,
    )
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_broken_configured_model_is_said_and_nothing_keeps_running(up, models_copy) -> None:
    (models_copy / "food_classifier_onnx" / "1" / "model.onnx").write_bytes(b"no network")
    running = up("--model-repository", str(models_copy), env={contract.MODEL_ENV: "food_classifier_onnx"})
    wait_until(running.ended, 60, "it went on with a model that cannot answer")
    running.close()
    assert running.process.returncode == 1
    assert "Error: the model 'food_classifier_onnx' is not ready" in running.output
    assert "model.onnx" in running.output
    assert "Traceback" not in running.output
    assert not running.processes()
    assert not running.leftovers()


def test_ctrl_c_ends_everything_while_a_model_that_hangs_is_asked_for_the_sample(up, tmp_path) -> None:
    model = tmp_path / "models" / "food_classifier"
    shutil.copytree(MODELS / "food_classifier", model, ignore=shutil.ignore_patterns("model.pt"))
    (model / "1" / "model.py").write_text(HANGS)
    running = up("--triton-only", "--model-repository", str(model.parent))
    running.wait_for("it hangs")
    assert running.stop() < 10
    assert running.process.returncode == 0
    wait_until(lambda: not running.processes(), 5, f"still running: {running.processes()}")
    assert not running.leftovers()


def test_an_unknown_model_is_refused_with_the_list_of_served_names() -> None:
    said = refused("--port", str(free_ports(1)[0]), env={contract.MODEL_ENV: "food_clasifier"})
    assert "served are digits, food_classifier, food_classifier_" in said


def test_a_port_in_use_is_said_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused("--port", str(taken.getsockname()[1]))
    assert "in use" in said
    assert "--port" in said


def test_triton_only_and_web_only_together_are_refused() -> None:
    assert "leave nothing to start" in refused("--triton-only", "--web-only")


def test_help_names_every_option() -> None:
    text = subprocess.run([GOURMET, "up", "--help"], capture_output=True, text=True, check=True).stdout
    for option in ("--model-repository", "--model-control", "--response-cache", "--workers", "--web-only"):
        assert option in text
