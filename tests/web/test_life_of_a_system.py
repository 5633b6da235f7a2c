"""A system's life beside a stack that runs: new, listed, renamed, removed, and nothing is left of it."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.small_network import ARCHITECTURE, LABELS, saved
from support.triton import some_models
from support.up import GOURMET, Up
from support.web_app import form

from gourmet.import_guard import CHECKOUT


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FOOD11_MODEL_NAME", "food_classifier_onnx")
    monkeypatch.delenv("GOURMET_SYSTEMS", raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "home" / "models").mkdir(parents=True)
    return tmp_path / "home"


def gourmet(*words: object) -> str:
    done = subprocess.run(
        [GOURMET, *map(str, words)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def git_status() -> str:
    command = ["git", "-C", str(CHECKOUT), "status", "--porcelain"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def status(url: str | urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        return exc.code


def listed() -> dict[str, dict[str, Any]]:
    return {row["model"] or row["system"]: row for row in json.loads(gourmet("list", "--json"))}


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


def everything(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*"))


@pytest.mark.slow
def test_a_system_comes_is_renamed_and_goes_and_nothing_is_left(
    home: Path, tmp_path: Path, sample: bytes
) -> None:
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

        with asked_all_the_time(f"{page}/api/v1/classify?model=food_classifier_onnx", sample) as answers:
            said = gourmet("rename", "flowers", "blumen")
        assert set(answers) == {200}
        assert len(answers) > 5
        assert "blumen_onnx answers: the sample is " in said
        pages = {name: status(f"{page}/classify/{name}") for name in ("flowers", "blumen", "stones")}
        assert pages == {"flowers": 404, "blumen": 200, "stones": 404}
        body, headers = form(sample)
        asked = urllib.request.Request(f"{page}/api/v1/classify?model=blumen_onnx", body, headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert json.load(answer)["results"][0]["label"] in LABELS
        states = {name: row["state"] for name, row in listed().items()}
        assert states == began | {"blumen_onnx": "serves"}

        gourmet("remove", "blumen", "--yes")
        assert status(f"{page}/classify/blumen") == 404
        assert status(f"{page}/readyz") == 200
        assert {name: row["state"] for name, row in listed().items()} == began
        gourmet("doctor", *up_ports(up), "--model-repository", models, "--model-repository", home / "models")
    finally:
        up.stop()
    assert [path for path in everything(home, models) if path.name != "systems"] == before
    assert git_status() == clone
    assert not up.leftovers()


def up_ports(up: Up) -> list[str]:
    ports = {"--port": up.port, "--http-port": up.http, "--grpc-port": up.grpc, "--metrics-port": up.metrics}
    return [f"{option}={port}" for option, port in ports.items()]


@pytest.mark.slow
def test_half_a_system_keeps_no_stack_from_starting(home: Path, tmp_path: Path) -> None:
    """Its model cannot be loaded, its sample is gone: the list says so, and the pages are as ever."""
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
