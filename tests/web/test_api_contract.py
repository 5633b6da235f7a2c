"""The API's document as others read it: Schemathesis tries what it says, a generated client asks by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.triton import ROOT
from support.web_app import StartWeb, WebApp

TESTS = ROOT / "tests"
PROGRAMS = Path(sys.executable).parent
# What somebody writes who has nothing but the client that was generated.
ASK = """
import io, sys
from client import Client
from client.api.default import api_classify, api_translate, food_predict
from client.models import ApiClassifyFilesBody, FoodPredictBody, TranslateRequest
from client.types import File

address, photo = sys.argv[1], open(sys.argv[2], "rb").read()
client = Client(base_url=address, headers={"Accept": "application/json"}, raise_on_unexpected_status=True)

def file(name):
    return File(payload=io.BytesIO(photo if name != "text.txt" else b"text"), file_name=name)

one = api_classify.sync(client=client, body=ApiClassifyFilesBody(file=[file("a.jpg")]))
print(one.results[0].label, one.results[0].probability > 0.5)
several = api_classify.sync(
    client=client, model="food_classifier_onnx",
    body=ApiClassifyFilesBody(file=[file("a.jpg"), file("text.txt"), file("b.jpg")]),
)
print(*(each.filename + ":" + getattr(each, "label", "refused") for each in several.results))
print(api_classify.sync(client=client, body=file("")).results[0].label)
print(food_predict.sync(client=client, body=FoodPredictBody(file=file("a.jpg"))).label)
texts = api_translate.sync(client=client, body=TranslateRequest(texts=["Я люблю чай.", "Он любит кофе."]))
print(*(each.text for each in texts.translations))
print(api_translate.sync(client=client, body=TranslateRequest(text="Я люблю чай.")).translations[0].text)
refused = api_translate.sync(client=client, body=TranslateRequest(text=" "))
print(refused.error.code)
"""


def run(folder: Path, program: str, *words: object) -> str:
    """Run a command in its own folder and return its output."""
    done = subprocess.run(
        [PROGRAMS / program, *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{folder}", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_schemathesis_finds_nothing(start: StartWeb, triton: Any, tmp_path: Path) -> None:
    web = start(triton.http_url, FOOD11_MODEL_NAME="food_classifier_int8")  # the fastest
    config = ("--config-file", TESTS / "support" / "schemathesis.toml")
    output = run(tmp_path, "schemathesis", *config, "run", f"{web.url}/api/v1/openapi.json")
    assert "Tested: 9" in output


def test_a_generated_client_can_classify_upload_several_photos_and_translate(
    python_web: WebApp, sample: bytes, tmp_path: Path
) -> None:
    address = f"{python_web.url}/api/v1/openapi.json"
    run(
        tmp_path,
        "openapi-python-client",
        "generate",
        "--url",
        address,
        "--output-path",
        "client",
        "--meta=none",
    )
    (tmp_path / "photo.jpg").write_bytes(sample)
    (tmp_path / "ask.py").write_text(ASK)
    printed = run(tmp_path, "python", "-P", "ask.py", python_web.url, "photo.jpg").splitlines()
    assert printed == [
        "Noodles/Pasta True",
        "a.jpg:Noodles/Pasta text.txt:refused b.jpg:Noodles/Pasta",
        "Noodles/Pasta",
        "Noodles/Pasta",
        "I like tea. He likes coffee.",
        "I like tea.",
        "bad_request",
    ]
