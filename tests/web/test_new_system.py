"""From a .pth that others trained to an answer on the page of the stack that runs."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from playwright.sync_api import Page, expect
from support.small_network import ARCHITECTURE, LABELS, saved
from support.triton import some_models
from support.up import GOURMET, Up
from support.web_app import form


@pytest.mark.slow
def test_third_party_weights_answer_on_the_page_and_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visit: Callable[..., Page], sample: bytes
) -> None:
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("GOURMET_SYSTEMS", str(tmp_path / "systems"))
    monkeypatch.setenv("FOOD11_MODEL_NAME", "food_classifier_onnx")
    (tmp_path / "systems").mkdir()
    (tmp_path / "tmp").mkdir()
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    up = Up(f"--model-repository={models}", tmp=tmp_path / "tmp")
    try:
        up.wait_for("ready after")
        weights = saved(tmp_path / "best.pth")
        command = [GOURMET, "new", "flowers", f"--labels={','.join(LABELS)}", f"--weights={weights}"]
        done = subprocess.run(
            [*command, f"--architecture={ARCHITECTURE}", f"--to={models}"],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "flowers_onnx answers: the sample is " in done.stdout
        page = f"http://127.0.0.1:{up.port}/classify/flowers"
        assert page in done.stdout

        body, headers = form(sample)
        address = f"http://127.0.0.1:{up.port}/api/v1/classify?model=flowers_onnx"
        with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=30) as answer:
            result = json.load(answer)["results"][0]
        assert result["label"] in LABELS

        opened = visit(page)
        photo = {"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": sample}
        opened.set_input_files("#file", photo)
        expect(opened.locator(".card[data-state=answered]")).to_have_count(1)
        assert opened.locator(".card .top li .name").first.inner_text() == result["label"]
    finally:
        up.stop()


@pytest.mark.slow
def test_a_half_precision_multi_label_network_with_external_weights_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visit: Callable[..., Page], sample: bytes
) -> None:
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("GOURMET_SYSTEMS", str(tmp_path / "systems"))
    monkeypatch.setenv("FOOD11_MODEL_NAME", "food_classifier_onnx")
    (tmp_path / "systems").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "tags.onnx"
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    head = np.array([[9.0, 8.0, -90.0]] + [[0.1, 0.1, 0.1]] * 2, np.float16)
    graph = onnx.helper.make_graph(
        [
            node("ReduceMean", ["x"], ["m"], axes=[1, 2], keepdims=0),
            node("MatMul", ["m", "w"], ["y"]),
        ],
        "g",
        [value("x", onnx.TensorProto.FLOAT16, ["n", "high", "wide", 3])],
        [value("y", onnx.TensorProto.FLOAT16, ["n", 3])],
        [onnx.numpy_helper.from_array(head, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location="tags.onnx.data", size_threshold=0)
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    up = Up(f"--model-repository={models}", tmp=tmp_path / "tmp")
    try:
        up.wait_for("ready after")
        command = [GOURMET, "new", "tags", "--labels=bright,red,dark", f"--weights={path}", "--multi-label"]
        done = subprocess.run(
            [*command, "--size=32", "--scale=1/255", f"--to={models}"],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "tags_onnx answers: the sample is " in done.stdout

        body, headers = form(sample)
        address = f"http://127.0.0.1:{up.port}/api/v1/classify?model=tags_onnx"
        with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=30) as answer:
            result = json.load(answer)["results"][0]
        assert [entry["label"] for entry in result["labels"]] == ["bright", "red"]
        assert sum(entry["probability"] for entry in result["labels"]) > 1.0
        assert result["sure"]

        opened = visit(f"http://127.0.0.1:{up.port}/classify/tags")
        opened.set_input_files("#file", {"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": sample})
        expect(opened.locator(".card[data-state=answered]")).to_have_count(1)
        assert opened.locator(".card h3 .label").first.inner_text() == "bright, red"
        request = urllib.request.Request(
            f"http://127.0.0.1:{up.port}/classify/tags", body, {**headers, "Accept": "text/html"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert "bright, red" in answer.read().decode(), "without JavaScript too"
    finally:
        up.stop()
