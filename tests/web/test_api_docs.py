"""The examples of the API's documentation, run as they stand there; its page in a real browser."""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.pages import PHONE, photo, violations

DIGIT = Path(__file__).parents[2] / "app" / "static" / "digits" / "7.png"
SAMPLE_ANSWER = Path(__file__).parents[2] / "app" / "api" / "examples" / "classify" / "answer.json"
Examples = dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def examples(python_web: Any) -> Examples:
    """The examples as the page shows them, by operation and language."""
    text = python_web.request("GET", "/api/docs", Accept="text/html").body.decode()
    found = re.findall(r"<h4>(\w+)</h4>\s*<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)
    shown: Examples = {}
    for language, example in found:
        asked = re.findall(r"(?:v1|API\}?)/(\w+)", example)
        shown[asked[0], language] = html.unescape(example)
    assert set(shown) == {
        (operation, language)
        for operation in ("caption", "classify", "digits", "explain")
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


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_examples_print_answers(examples: Examples, photos: Path) -> None:
    shown = run(["bash", "-ec", examples["classify", "curl"]], photos).splitlines()
    one, several, models = (json.loads(line) for line in shown if line)
    assert one["results"][0]["label"]
    assert several["results"][0]["model"]["name"] == "food_classifier_onnx"
    assert several["results"][1]["error"]["code"] == "broken_picture"
    assert models["default"] == "food_classifier"
    # The sample of an answer on the page is one that the model gives.
    said, given = (each["results"][0] for each in (json.loads(SAMPLE_ANSWER.read_text()), several))
    assert said.keys() - {"inside"} == given.keys() - {"inside"}
    assert said["timings_ms"].keys() - {"wait"} == given["timings_ms"].keys() - {"wait"}
    for field in ("label", "class_id", "sure", "relevant", "threshold", "bytes_sent", "filename", "model"):
        assert said[field] == given[field], field
    assert [each["label"] for each in said["top"]] == [each["label"] for each in given["top"]]
    assert said["probability"] == pytest.approx(given["probability"], abs=0.01)


def test_the_python_example_prints_the_label(examples: Examples, photos: Path) -> None:
    shown = run([sys.executable, "-c", examples["classify", "Python"]], photos)
    assert re.fullmatch(r"[A-Z][\w/ ]+ \d+%(, not sure)?\n", shown)


def test_the_examples_of_a_heat_map_print_its_lines_and_draw_it(examples: Examples, photos: Path) -> None:
    lines = run(["bash", "-ec", examples["explain", "curl"]], photos).splitlines()
    assert json.loads(lines[-1])["final"] is True
    *progress, rows = run([sys.executable, "-c", examples["explain", "Python"]], photos).partition(
        "49 of 49\n"
    )
    assert "of 49" in progress[0]
    drawn = rows.splitlines()
    assert [len(row) for row in drawn] == [14] * 7
    assert "@@" in rows


def test_the_examples_of_a_digit_print_its_answer(examples: Examples, photos: Path) -> None:
    (result,) = json.loads(run(["bash", "-ec", examples["digits", "curl"]], photos))["results"]
    assert result["label"] == "7"
    bars = run([sys.executable, "-c", examples["digits", "Python"]], photos).splitlines()
    assert len(bars) == 10
    assert max(bars, key=len).startswith("7 ")


ASK = """async ([example, photo]) => {
  const classify = new Function(`${example}; return classify;`)();
  const bytes = Uint8Array.from(atob(photo), (letter) => letter.charCodeAt(0));
  return classify([new File([bytes], "photo.jpg"), new File(["text"], "text.txt")]);
}"""


EXPLAIN = """async ([example, photo]) => {
  const explain = new Function(`${example}; return explain;`)();
  const bytes = Uint8Array.from(atob(photo), (letter) => letter.charCodeAt(0));
  const maps = [];
  await explain(new File([bytes], "photo.jpg"), (falls, final) => maps.push([falls.length, final]));
  return maps;
}"""
READ = """async ([example, address]) => {
  const read = new Function(`${example}; return read;`)();
  const digit = await createImageBitmap(await (await fetch(address)).blob());
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: digit.width, height: digit.height });
  canvas.getContext("2d").drawImage(digit, 0, 0);
  return read(canvas);
}"""


def test_the_javascript_examples_answer_in_a_browser_and_on_a_phone_nothing_sticks_out(
    examples: Examples, python_web: Any, visit: Callable[..., Page], sample: bytes
) -> None:
    page = visit(f"{python_web.url}/api/docs", **PHONE)
    told = page.evaluate(ASK, [examples["classify", "JavaScript"], encoded(sample)])
    assert told[0].startswith("photo.jpg: ")
    assert told[1].startswith("text.txt: this is not a picture")
    assert page.evaluate(EXPLAIN, [examples["explain", "JavaScript"], encoded(sample)]) == [
        [7, False],
        [14, True],
    ]
    assert page.evaluate(READ, [examples["digits", "JavaScript"], "/static/digits/7.png"]) == "7"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    code, button = page.locator(".copyable code").first, page.locator(".copyable button").first
    assert code.evaluate("code => code.getBoundingClientRect().top") >= button.evaluate(
        "button => button.getBoundingClientRect().bottom"
    )


def test_contents_copy_buttons_and_requests_sent_from_the_page(
    visit: Callable[..., Page], python_web: Any, sample: bytes, tmp_path: Path
) -> None:
    page = visit(f"{python_web.url}/api/docs", permissions=["clipboard-read", "clipboard-write"])
    links = page.locator(".contents a").evaluate_all("links => links.map(each => each.getAttribute('href'))")
    assert "#api_classify" in links
    assert page.evaluate("links => links.every(link => document.querySelector(link))", links)
    # The sample of an answer stands with the code that gets it.
    titles = page.locator("h3, h4").all_inner_texts()
    above = titles[: titles.index("A response")]
    named = [each for each in above if each not in ("curl", "Python", "JavaScript")]
    assert named[-1] == "What is on these photos"
    example = page.locator(".copyable", has_text="curl -s $API/models")
    example.get_by_role("button").click()
    expect(example.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == example.locator("pre").inner_text()
    operation = page.locator(".operation", has=page.locator("#api_classify"))
    operation.locator("summary").click()
    operation.locator("[name=model]").select_option("food_classifier_onnx")
    eggs = photo(sample)
    operation.locator("[type=file]").set_input_files(eggs)
    operation.get_by_role("button", name="Send").click()
    expect(operation.locator("output")).to_contain_text("Status 200")
    told = json.loads(operation.locator("[data-reply]").inner_text())["results"][0]
    assert (told["filename"], told["model"]["name"]) == ("eggs.jpg", "food_classifier_onnx")
    sent = operation.locator("[data-curl]").inner_text()
    assert sent.endswith(
        "-F 'file=@eggs.jpg' " + f"'{python_web.url}/api/v1/classify?model=food_classifier_onnx'"
    )
    # What takes JSON begins with a request that is answered, and the command line does as the button did.
    for name in ("translate", "generate"):
        text = page.locator(".operation", has=page.locator(f"#api_{name}"))
        text.locator("summary").click()
        text.get_by_role("button", name="Send").click()
        expect(text.locator("output")).to_contain_text("Status 200")
        again = run(["bash", "-ec", text.locator("[data-curl]").inner_text()], tmp_path)
        assert "I like tea." in again
        assert "I like tea." in text.locator("[data-reply]").inner_text()
    assert page.locator("#api_digits-model option").all_text_contents() == [
        "(left out)",
        "digits",
        "onnx-mnist-cpu",
    ]
    assert violations(page) == []
