"""`gourmet up` as a user runs it: a process of its own, real ports, real signals."""

from __future__ import annotations

import fnmatch
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.life import gourmet
from support.triton import MODELS, some_models
from support.up import GOURMET, Up
from support.web_app import Site, WebReply, form

from gourmet.served.manifest import sha256
from gourmet.stack.processes import http_ok, wait_until
from gourmet.stack.triton_server import IMAGE_ENV, find_wheel
from gourmet.systems.food11 import contract

ONNX = "food_classifier_onnx"
HANGS = """
import time

class TritonPythonModel:
    def execute(self, requests):
        print("it hangs", flush=True)
        time.sleep(600)
"""
# A module that notes that it was imported.
TRAP = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\nraise ImportError\n"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> Up:
        tmp = tmp_path / f"tmp{len(started)}"
        tmp.mkdir(exist_ok=True)
        started.append(Up(*arguments, tmp=tmp, env=env))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.stop(signal.SIGTERM)


def predict(running: Up, path: str = "/predict") -> WebReply:
    """POST the sample the way the README's curl does."""
    body, content = form(contract.SYSTEM.sample())
    return Site(running.port).request("POST", path, body, Accept="application/json", **content)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A repository that the product does with, and that starts in a fraction of the time of all.

    The space in its name would split a stub's arguments.
    """
    return some_models(tmp_path / "my models", ONNX, "digits")


def held_back_until_a_verb_asks(running: Up) -> None:
    """A model for study is not there, and comes with the first question of the workbench."""
    reported = next(line for line in running.lines if "onnx-mnist-cpu" in line)
    assert "loaded when a verb asks, or all with --all" in reported
    ready = f"http://127.0.0.1:{running.http}/v2/models/onnx-mnist-cpu/ready"
    assert not http_ok(ready)
    ask = [GOURMET, "check", "onnx-mnist-cpu", "--limit", "8", "--url", f"127.0.0.1:{running.http}"]
    env = {**os.environ, "TMPDIR": str(running.tmp)}
    checked = subprocess.run(ask, env=env, capture_output=True, text=True, timeout=200)
    assert "loading onnx-mnist-cpu" in checked.stderr
    assert http_ok(ready)


@pytest.mark.promise("README: It needs no GPU, no Docker and no 15 GB image")
@pytest.mark.parametrize(
    ("number", "model"),
    [
        pytest.param(signal.SIGINT, "food_classifier", marks=pytest.mark.slow),
        (signal.SIGTERM, ONNX),
    ],
    ids=["Ctrl-C, all models", "SIGTERM, few models"],
)
def test_a_photo_is_answered_and_a_signal_ends_everything(up, few, number, model, tmp_path) -> None:
    repository = () if model == "food_classifier" else ("--model-repository", str(few))
    kept = tmp_path / "kept"
    env = {contract.SYSTEM.model_variable: model, "KEEP_CORRECTIONS": os.path.relpath(kept)}
    running = up(*repository, env=env)
    running.wait_for("the page http://127.0.0.1:")
    assert f"photos with corrected labels are kept in {kept}\n" in running.output
    assert predict(running, "/api/v1/corrections?label=Bread").status == 200
    assert len(list(kept.glob("food11/Bread/*.jpg"))) == 1
    reply = predict(running)
    assert reply.status == 200, reply.body
    answer = reply.json
    assert answer["model"]["name"] == model
    assert answer["label"] in contract.SYSTEM.labels
    assert len(answer["top"]) == 5
    if not repository:
        held_back_until_a_verb_asks(running)
    running.stop(number)
    assert running.process.returncode == 0
    wait_until(lambda: not running.processes(), 60, f"still running: {running.processes()}")
    assert not running.leftovers()


@pytest.mark.promise("operating: Triton is killed")
@pytest.mark.slow
def test_a_dead_triton_is_restarted_and_the_app_reports_it_meanwhile(up, few) -> None:
    running = up("--model-repository", str(few), env={contract.SYSTEM.model_variable: ONNX})
    running.wait_for("the page http://127.0.0.1:")
    running.process.send_signal(signal.SIGSTOP)  # so that Triton stays away until the app has noticed
    try:
        os.kill(running.triton_pid(), signal.SIGKILL)
        wait_until(lambda: predict(running).status == 503, 60, "the app reports no failure")
        reply = predict(running)
    finally:
        running.process.send_signal(signal.SIGCONT)
    assert int(reply.headers["retry-after"]) > 0
    assert reply.json["error"]["code"]
    running.wait_for("starting it again")
    wait_until(lambda: predict(running).status == 200, 60, "the app did not recover")
    # Those that the app does not need are loaded after that.
    ready = f"http://127.0.0.1:{running.http}/v2/models/digits/ready"
    wait_until(lambda: http_ok(ready), 60, "the other models were not loaded again")
    running.stop()
    assert not running.leftovers(), "the Python backend's folders, among others"


@pytest.mark.slow
def test_a_start_cleans_up_after_a_killed_stack_and_not_after_a_running_one(up, tmp_path) -> None:
    options = ("--model-repository", str(some_models(tmp_path / "models", "digits")))
    (tmp_path / "run").mkdir()
    tmp = tmp_path / "tmp0"  # which all three share
    names: set[str] = set()

    def started() -> Up:
        running = up(*options, env={"TMPDIR": str(tmp), "XDG_RUNTIME_DIR": str(tmp_path / "run")})
        running.wait_for("the page http://127.0.0.1:")
        return running

    def there() -> set[Path]:
        names.update(path.name for path in tmp.glob("gourmet-triton-*"))
        memory = (path for name in names for path in Path("/dev/shm").glob(f"{name}*"))
        return {*tmp.iterdir(), *(tmp_path / "run").rglob("*.json"), *memory}

    runs = started()
    of_running = there()
    dies = started()
    of_killed = there() - of_running
    dies.kill()
    left = {path.name for path in of_killed & there()}
    own = (f"triton-{dies.http}.json", "web-metrics-*", "gourmet-triton-????????????", "gourmet-triton-*-*")
    for kind in own:
        assert fnmatch.filter(left, kind), kind
    after = started()
    assert not of_killed & there()
    assert of_running <= there()
    assert http_ok(f"http://127.0.0.1:{runs.http}/v2/models/digits/ready")
    runs.stop()
    after.stop()
    assert not there()


def test_the_other_models_serve_beside_a_broken_one(up, few) -> None:
    some_models(few, "food_classifier_int8")
    (few / "food_classifier_int8" / "1" / "model.onnx").write_bytes(b"no network")
    options = ("--triton-only", "--model-repository", str(few))
    running = up(*options, env={contract.SYSTEM.model_variable: ONNX})
    running.wait_for("the model 'food_classifier_int8' did not load, the others serve:")
    running.wait_for("ready after")
    wait_until(lambda: http_ok(f"http://127.0.0.1:{running.http}/v2/models/{ONNX}/ready"), 60, "not ready")


def test_a_broken_configured_model_is_named_and_the_page_stays_up(up, few, tmp_path) -> None:
    """And no program imports a file from the temporary folder, where every user can write."""
    (tmp_path / "tmp0").mkdir()
    for name in ("sched", "flask", "gunicorn"):
        (tmp_path / "tmp0" / f"{name}.py").write_text(TRAP)
    (few / ONNX / "1" / "model.onnx").write_bytes(b"no network")
    running = up("--model-repository", str(few), env={contract.SYSTEM.model_variable: ONNX})
    running.wait_for("the model 'food_classifier_onnx' did not load, the others serve:")
    running.wait_for("ready after")
    wait_until(lambda: http_ok(f"http://127.0.0.1:{running.port}/healthz"), 60, "it does not answer")
    reply = Site(running.port).request("GET", "/readyz")
    assert (reply.status, reply.json["systems"]["food11"]["error"]["code"]) == (503, "model_not_ready")
    assert not (tmp_path / "tmp0" / "imported").exists(), running.output


@pytest.mark.promise("operating: the newest version on disk is damaged, and Triton starts")
@pytest.mark.slow
def test_the_newest_version_that_loads_serves(up, few) -> None:
    """Also after Triton was killed; the page says that it is an older one, and rollback makes that last."""
    shutil.copytree(few / ONNX / "1", few / ONNX / "2")
    broken = shutil.copytree(few / ONNX / "1", few / ONNX / "3") / "model.onnx"
    broken.write_bytes(broken.read_bytes()[:1000])
    running = up("--model-repository", str(few), env={contract.SYSTEM.model_variable: ONNX})
    running.wait_for("version 2 of 'food_classifier_onnx' serves instead")
    running.wait_for("ready after")

    def version() -> str:
        reply = predict(running)
        return str(reply.json["model"]["version"] if reply.status == 200 else reply.status)

    assert version() == "2"
    model = Site(running.port).request("GET", "/readyz").json["systems"]["food11"]["model"]
    assert model == {"name": ONNX, "version": "2", "instead_of": "3"}
    os.kill(running.triton_pid(), signal.SIGKILL)
    running.wait_for("starting it again")
    wait_until(lambda: version() == "2", 60, "version 2 does not serve after the restart of Triton")
    output = gourmet("rollback", ONNX, "--to", few, "--url", "127.0.0.1:9")
    assert "the files are changed for its next start" in output
    assert not (few / ONNX / "3").exists()


@pytest.mark.slow
def test_in_nvidias_image_a_changed_file_is_not_served_although_its_backend_reads_no_manifest(
    up, few, tmp_path
) -> None:
    """A stand-in for the image: the wheel's parts laid out as there, and a backend that checks nothing."""
    wheel, image = find_wheel(), tmp_path / "tritonserver"
    shutil.copytree(wheel.server / "bin", image / "bin")
    backend = wheel.assemble_backends(image / "backends") / "onnxruntime" / "model.py"
    checks = "manifest.deployed_file("
    assert checks in backend.read_text()
    backend.write_text(backend.read_text().replace(checks, "(lambda version, *_: version / 'model.onnx')("))
    profile = few / ONNX / "configs" / "gpu.pbtxt"
    on_gpu = (few / ONNX / "config.pbtxt").read_text().replace("count: 1", "count: 2")
    assert on_gpu != (few / ONNX / "config.pbtxt").read_text()
    profile.write_text(on_gpu)
    listed = shutil.copytree(few / ONNX / "1", few / ONNX / "2") / "manifest.json"
    listed.write_text(listed.read_text().replace(sha256(listed.with_name("model.onnx")), "0" * 64))
    environment = wheel.environment() | {IMAGE_ENV: str(image), "MODEL_CONFIG_NAME": "gpu"}
    running = up("--triton-only", "--model-repository", str(few), env=environment)
    running.wait_for("this is not the deployed file")
    running.wait_for("version 1 of 'food_classifier_onnx' serves instead")

    def served() -> dict[str, Any]:
        return Site(running.http).request("GET", f"/v2/models/{ONNX}/config").json

    wait_until(lambda: http_ok(f"http://127.0.0.1:{running.http}/v2/models/{ONNX}/ready"), 60, "not ready")
    assert served()["version_policy"] == {"specific": {"versions": [1]}}
    assert served()["instance_group"][0]["count"] == 2, "by the profile of a GPU"


@pytest.mark.slow
def test_ctrl_c_ends_everything_while_the_sample_check_of_a_model_hangs(up, tmp_path) -> None:
    model = tmp_path / "models" / "food_classifier"
    shutil.copytree(MODELS / "food_classifier", model)
    (model / "1" / "model.py").write_text(HANGS)
    running = up("--triton-only", "--model-repository", str(model.parent))
    running.wait_for("it hangs")
    running.stop()
    assert running.process.returncode == 0
    wait_until(lambda: not running.processes(), 60, f"still running: {running.processes()}")
    assert not running.leftovers()
