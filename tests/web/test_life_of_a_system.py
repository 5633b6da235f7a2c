"""A system's life beside a stack that runs: new, listed, removed, and nothing is left of it."""

from __future__ import annotations

import json
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import onnx
import pytest
from support.life import everything, fresh_clone, git_status, gourmet, home, listed, status
from support.onnx_network import BYTE, network
from support.small_network import ARCHITECTURE, LABELS, saved
from support.triton import some_models
from support.up import Up
from support.web_app import form

from gourmet.serving.waiting import wait_until

__all__ = ["home"]  # the fixture


@contextmanager
def asked_all_the_time(url: str, sample: bytes) -> Iterator[list[int]]:
    """The statuses of answers, one after the other."""
    statuses: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            body, headers = form(sample)
            statuses.append(status(urllib.request.Request(url, body, headers)))

    asking = threading.Thread(target=ask)
    asking.start()
    yield statuses
    ended.set()
    asking.join()


@pytest.mark.slow
def test_a_removed_system_leaves_nothing_behind(home: Path, tmp_path: Path, sample: bytes) -> None:
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    weights = saved(tmp_path / "best.pth")
    before, clone = everything(home, models), git_status()
    up = Up(f"--model-repository={models}", f"--model-repository={home / 'models'}", tmp=tmp_path / "tmp")
    try:
        up.wait_for("ready after")
        page = f"http://127.0.0.1:{up.port}"
        began = {name: row["state"] for name, row in listed().items()}
        assert began.items() >= {"food_classifier_onnx": "serves", "digits": "no model"}.items()

        wanted = ("--labels", ",".join(LABELS), "--weights", weights, "--architecture", ARCHITECTURE)
        assert "flowers_onnx answers: the sample is " in gourmet("new", "flowers", *wanted)
        assert status(f"{page}/classify/flowers") == 200
        row = listed()["flowers_onnx"]
        assert (row["system"], row["version"], row["state"], row["by"]) == (
            "flowers",
            1,
            "serves",
            "gourmet new",
        )
        assert row["requests"] >= 1
        assert row["memory_bytes"] > 10_000_000
        assert git_status() == clone

        body, headers = form(sample)
        request = urllib.request.Request(f"{page}/api/v1/classify?model=flowers_onnx", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["results"][0]["label"] in LABELS
        states = {name: row["state"] for name, row in listed().items()}
        assert states == began | {"flowers_onnx": "serves"}

        with asked_all_the_time(f"{page}/api/v1/classify?model=food_classifier_onnx", sample) as answers:
            gourmet("remove", "flowers", "--yes")
        assert set(answers) == {200}
        assert len(answers) > 5
        assert status(f"{page}/classify/flowers") == 404
        assert status(f"{page}/readyz") == 200
        assert {name: row["state"] for name, row in listed().items()} == began
        gourmet("doctor", *up_ports(up), "--model-repository", models, "--model-repository", home / "models")
    finally:
        up.stop()
    assert [path for path in everything(home, models) if path.name != "systems"] == before
    assert git_status() == clone
    assert not up.leftovers()


def brought(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return the arguments of `gourmet new` for five files; two of the files are invalid."""
    weights = saved(folder / "best.pth")
    (folder / "text.pth").write_text("no weights")
    files = {
        "first": network(),
        "last": network(("n", 8, 8, 3), BYTE),
        "masks": network(("n", 3, 8, 8), scores=("n", 2, 8, 8)),
    }
    for name, model in files.items():
        onnx.save(model, folder / f"{name}.onnx")
    commands: dict[str, tuple[object, ...]] = {
        name: ("--labels", "a,b,c", "--weights", folder / f"{name}.onnx") for name in files
    }
    torch_kind = ("--labels", ",".join(LABELS), "--architecture", ARCHITECTURE, "--weights")
    return commands | {"of_pth": (*torch_kind, weights), "text": (*torch_kind, folder / "text.pth")}


WRONG = {"masks": "cannot be read as", "text": "is not a file of weights"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_files_brought_to_a_fresh_clone_leave_it_unchanged(
    home: Path, tmp_path: Path, sample: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fresh_clone(tmp_path / "clone")
    verb = partial(gourmet, program=program)
    assert f"{tmp_path / 'clone'}/triton/models" in verb("rollback", "digits", succeeds=False)
    (tmp_path / "brought").mkdir()
    commands = brought(tmp_path / "brought")
    monkeypatch.setenv("FOOD11_MODEL_NAME", "food_classifier")
    models = some_models(tmp_path / "models", "food_classifier", "food_classifier_onnx")

    def there() -> list[Path]:
        kept = {"systems", "__pycache__"}  # Python's own, of a model that is code
        return [path for path in everything(home, models) if not kept & {path.name, path.parent.name}]

    before = there()
    assert git_status(tmp_path / "clone") == ""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    repositories = (f"--model-repository={models}", f"--model-repository={home / 'models'}")
    up = Up(*repositories, tmp=tmp_path / "tmp", program=program)
    try:
        up.wait_for("ready after")
        page, began = f"http://127.0.0.1:{up.port}", listed(program)
        for name, words in commands.items():
            output = verb("new", name, *words, succeeds=name not in WRONG)
            assert WRONG.get(name, f"{name}_onnx answers: the sample is ") in output
            assert status(f"{page}/classify/{name}") == (404 if name in WRONG else 200)

        def answered(version: int) -> int:
            body, headers = form(sample)
            address = f"{page}/api/v1/classify?model=first_onnx&version={version}"
            return status(urllib.request.Request(address, body, headers))

        for version in (2, 3):
            output = verb("deploy", "first", "--weights", tmp_path / "brought" / "first.onnx")
            assert f"first_onnx/{version}\n" in output
        verb("config", "first_onnx", "--versions", "2,3")
        assert [answered(version) for version in (1, 2, 3)] == [404, 200, 200]
        verb("config", "first_onnx", "--reset")
        other = tmp_path / "brought" / "last.onnx"
        assert "layout 'NHWC', not 'NCHW'" in verb("deploy", "first", "--weights", other, succeeds=False)
        # It is 503 while Triton unloads it.
        wait_until(lambda: [answered(version) for version in (2, 3)] == [404, 200], 60, "2 still serves")
        assert "version 3 is withdrawn, version 2 serves" in verb("rollback", "first")
        assert answered(2) == 200
        for name in commands.keys() - WRONG.keys():
            verb("remove", name, "--yes")
        assert listed(program).keys() == began.keys()
        assert git_status(tmp_path / "clone") == ""
    finally:
        up.stop()
    assert there() == before
    assert git_status(tmp_path / "clone") == ""
    assert not up.leftovers()
    assert not list((tmp_path / "tmp").iterdir())


def up_ports(up: Up) -> list[str]:
    ports = {"--port": up.port, "--http-port": up.http, "--grpc-port": up.grpc, "--metrics-port": up.metrics}
    return [f"{option}={port}" for option, port in ports.items()]


@pytest.mark.slow
def test_a_broken_system_does_not_stop_the_stack_from_starting(home: Path, tmp_path: Path) -> None:
    """Its model cannot be loaded and its sample is missing: `list` reports both; the pages work."""
    gourmet("new", "stones", "--labels", "a,b")
    gourmet("new", "shells", "--labels", "a,b")
    (home / "systems" / "shells" / "sample.jpg").unlink()
    (home / "models" / "stones_onnx" / "1").mkdir(parents=True)
    system = 'parameters { key: "system" value: { string_value: "stones" } }'
    config = f'name: "stones_onnx" backend: "onnxruntime" {system}'
    (home / "models" / "stones_onnx" / "config.pbtxt").write_text(config)
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    up = Up(f"--model-repository={models}", f"--model-repository={home / 'models'}", tmp=tmp_path / "tmp")
    try:
        up.wait_for("ready after")
        page = f"http://127.0.0.1:{up.port}"
        paths = ("/", "/compare", "/readyz", "/classify/stones", "/api/v1/models")
        assert {path: status(f"{page}{path}") for path in paths} == dict.fromkeys(paths, 200)
        assert status(f"{page}/classify/shells") == 404
        rows = listed()
        assert (rows["stones_onnx"]["state"], rows["shells"]["state"]) == ("failed", "broken")
    finally:
        up.stop()
