"""The API's document: its examples run as they stand, Schemathesis and a generated client try it."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from support.pages import PHONE, Visit, photo, violations
from support.triton import ROOT
from support.web_app import StartWeb, WebApp

PROGRAMS = Path(sys.executable).parent
DIGIT = ROOT / "app" / "static" / "digits" / "7.png"
Examples = dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def examples(python_web: Any) -> Examples:
    """The examples as the page shows them, by operation and language."""
    text = python_web.request("GET", "/api/docs", Accept="text/html").body.decode()
    blocks = re.findall(r"<h2>(\w+)</h2>\s*<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)
    shown: Examples = {}
    for language, example in blocks:
        routes = re.findall(r"(?:v1|API\}?)/(\w+)", example)
        shown[routes[0], language] = html.unescape(example)
    assert set(shown) == {
        (operation, language)
        for operation in ("caption", "classify", "digits", "explain", "translate")
        for language in ("curl", "Python", "JavaScript")
    }
    return shown


@pytest.fixture
def photos(tmp_path: Path, sample: bytes) -> Path:
    (tmp_path / "photo.jpg").write_bytes(sample)
    (tmp_path / "other.jpg").write_bytes(sample[:1000])
    (tmp_path / "digit.png").write_bytes(DIGIT.read_bytes())
    return tmp_path


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def run(command: list[Any], folder: Path) -> str:
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{folder}", "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_curl_examples_print_answers(examples: Examples, photos: Path, python_web: Any) -> None:
    shown = run(["bash", "-ec", examples["classify", "curl"]], photos).splitlines()
    single, several, models = (json.loads(line) for line in shown if line)
    assert single["results"][0]["label"]
    assert several["results"][0]["model"]["name"] == "food_classifier_onnx"
    assert several["results"][1]["error"]["code"] == "broken_picture"
    assert models["default"] == "food_classifier"
    # The sample of an answer on the page is one that the model gives.
    operation = python_web.request("GET", "/api/v1/openapi.json").json["paths"]["/api/v1/classify"]["post"]
    sample = operation["responses"]["200"]["content"]["application/json"]["example"]
    documented, printed = (reply["results"][0] for reply in (sample, several))
    assert documented.keys() - {"inside"} == printed.keys() - {"inside"}
    assert documented["timings_ms"].keys() - {"wait"} == printed["timings_ms"].keys() - {"wait"}
    for field in ("label", "class_id", "sure", "relevant", "threshold", "bytes_sent", "filename", "model"):
        assert documented[field] == printed[field], field
    assert [entry["label"] for entry in documented["top"]] == [entry["label"] for entry in printed["top"]]
    assert documented["probability"] == pytest.approx(printed["probability"], abs=0.01)


def test_the_python_example_prints_the_label(examples: Examples, photos: Path) -> None:
    shown = run([sys.executable, "-c", examples["classify", "Python"]], photos)
    assert re.fullmatch(r"[A-Z][\w/ ]+ \d+%(, not sure)?\n", shown)


def test_the_heat_map_examples_print_its_lines_and_draw_it(examples: Examples, photos: Path) -> None:
    lines = run(["bash", "-ec", examples["explain", "curl"]], photos).splitlines()
    assert json.loads(lines[-1])["final"] is True
    *progress, rows = run([sys.executable, "-c", examples["explain", "Python"]], photos).partition(
        "49 of 49\n"
    )
    assert "of 49" in progress[0]
    drawn = rows.splitlines()
    assert [len(row) for row in drawn] == [14] * 7
    assert "@@" in rows


def test_the_digit_examples_print_the_digit(examples: Examples, photos: Path) -> None:
    (result,) = json.loads(run(["bash", "-ec", examples["digits", "curl"]], photos))["results"]
    assert result["label"] == "7"
    bars = run([sys.executable, "-c", examples["digits", "Python"]], photos).splitlines()
    assert len(bars) == 10
    assert max(bars, key=len).startswith("7 ")


def test_the_translation_examples_print_translations(examples: Examples, photos: Path) -> None:
    both, *stream = run(["bash", "-ec", examples["translate", "curl"]], photos).splitlines()
    assert [answer["text"] for answer in json.loads(both)["translations"]] == [
        "I like tea.",
        "He likes coffee.",
    ]
    assert "event: piece" in stream
    printed = run([sys.executable, "-c", examples["translate", "Python"]], photos)
    assert printed == "I like tea.\nHe likes coffee.\n"


def test_the_classify_examples_check_for_food(examples: Examples, photos: Path) -> None:
    (photos / "photo.jpg").write_bytes(DIGIT.read_bytes())
    shown = run([sys.executable, "-c", examples["classify", "Python"]], photos)
    assert shown == "this photo does not show food\n"


def test_the_caption_examples_print_captions(examples: Examples, photos: Path) -> None:
    several, *stream = run(["bash", "-ec", examples["caption", "curl"]], photos).splitlines()
    described, broken = json.loads(several)["results"]
    assert (len(described["alternatives"]), broken["error"]["code"]) == (2, "broken_picture")
    assert "event: piece" in stream
    (photos / "other.jpg").unlink()
    first, *others = run([sys.executable, "-c", examples["caption", "Python"]], photos).splitlines()
    assert len(first.split()) > 3
    assert others
    assert all(line.startswith("or: ") for line in others)


# Calls an example's function with a photo, and returns what it reported.
CALL = """async ([example, name, photo]) => {
  const call = new Function(`${example}; return ${name};`)();
  const bytes = Uint8Array.from(atob(photo), (letter) => letter.charCodeAt(0));
  const file = new File([bytes], "photo.jpg");
  const told = [];
  if (name === "classify") return call([file, new File(["text"], "text.txt")]);
  await call(file, (...values) => told.push(values));
  return told;
}"""
TRANSLATE = """async ([example, text]) => {
  const translate = new Function(`${example}; return translate;`)();
  const words = [];
  await translate(text, (part) => words.push(part));
  return words.join("");
}"""
READ = """async ([example, address]) => {
  const read = new Function(`${example}; return read;`)();
  const digit = await createImageBitmap(await (await fetch(address)).blob());
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: digit.width, height: digit.height });
  canvas.getContext("2d").drawImage(digit, 0, 0);
  return read(canvas);
}"""


def test_the_javascript_examples_work_in_a_browser_and_fit_a_phone(
    examples: Examples, open_page: Visit, sample: bytes
) -> None:
    page = open_page("/api/docs", **PHONE)

    def called(operation: str, function: str) -> Any:
        return page.evaluate(CALL, [examples[operation, "JavaScript"], function, encoded(sample)])

    messages = called("classify", "classify")
    assert messages[0].startswith("photo.jpg: ")
    assert messages[1].startswith("text.txt: this is not a picture")
    assert [[len(falls), final] for falls, final in called("explain", "explain")] == [[7, False], [14, True]]
    assert len("".join(words for (words,) in called("caption", "describe")).split()) > 3
    assert page.evaluate(READ, [examples["digits", "JavaScript"], "/static/digits/7.png"]) == "7"
    translated = page.evaluate(TRANSLATE, [examples["translate", "JavaScript"], "Я люблю чай."])
    assert translated == "I like tea."
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_example_is_copied_by_its_button(examples: Examples, open_page: Visit) -> None:
    page = open_page("/api/docs", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_text("Examples: Translate").click()
    page.get_by_role("button", name="Copy Python").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").strip() == examples["translate", "Python"].strip()


def test_requests_are_sent_from_the_page_under_its_content_policy(open_page: Visit, sample: bytes) -> None:
    # Swagger UI looks for a part of its own for files, and then takes another.
    page = open_page("/api/docs", color_scheme="dark", forgiven=("JsonSchema_string_binary",))
    classify = page.locator("#operations-default-api_classify")
    classify.locator(".opblock-summary-control").click()
    classify.locator("[type=file]").set_input_files(photo(sample))
    classify.get_by_placeholder("model").fill("food_classifier_onnx")
    classify.get_by_role("button", name="Execute").click()
    answer = classify.locator(".live-responses-table")
    expect(answer).to_contain_text("eggs.jpg")
    expect(answer).to_contain_text("food_classifier_onnx")
    translate = page.locator("#operations-default-api_translate")
    translate.locator(".opblock-summary-control").click()
    translate.get_by_role("button", name="Execute").click()
    expect(translate.locator(".live-responses-table")).to_contain_text("I like tea.")
    page.locator("nav .menu summary").click()
    expect(page.locator("nav .choices")).to_be_visible()
    page.get_by_role("heading", name="API", exact=True).click()
    expect(page.locator("nav .choices")).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == page.evaluate(
        "getComputedStyle(document.body).backgroundColor"
    )
    # Swagger UI's own names, contrast and landmarks are not ours to correct.
    page.evaluate("document.getElementById('swagger-ui').remove()")
    assert violations(page) == []


def test_without_javascript_the_page_shows_the_document_as_text(open_page: Visit) -> None:
    page = open_page("/api/docs", java_script_enabled=False)
    assert json.loads(page.locator("noscript pre").inner_text())["paths"].keys() > {"/api/v1/classify"}
    expect(page.get_by_role("link", name="openapi.json")).to_be_visible()


@pytest.mark.slow
def test_schemathesis_finds_nothing(start: StartWeb, triton: Any, tmp_path: Path) -> None:
    web = start(triton.http_url, FOOD11_MODEL_NAME="food_classifier_int8")  # the fastest
    config = ("--config-file", ROOT / "tests" / "support" / "schemathesis.toml")
    command = [PROGRAMS / "schemathesis", *config, "run", f"{web.url}/api/v1/openapi.json"]
    assert "Tested: 9" in run(command, tmp_path)


# What somebody writes who has nothing but the client that was generated.
PROGRAM = """
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


def test_a_generated_client_can_classify_upload_several_photos_and_translate(
    python_web: WebApp, sample: bytes, tmp_path: Path
) -> None:
    generate = [PROGRAMS / "openapi-python-client", "generate", "--output-path=client", "--meta=none"]
    run([*generate, f"--url={python_web.url}/api/v1/openapi.json"], tmp_path)
    (tmp_path / "photo.jpg").write_bytes(sample)
    (tmp_path / "ask.py").write_text(PROGRAM)
    printed = run([sys.executable, "-P", "ask.py", python_web.url, "photo.jpg"], tmp_path).splitlines()
    assert printed == [
        "Noodles/Pasta True",
        "a.jpg:Noodles/Pasta text.txt:refused b.jpg:Noodles/Pasta",
        "Noodles/Pasta",
        "Noodles/Pasta",
        "I like tea. He likes coffee.",
        "I like tea.",
        "bad_request",
    ]
