"""The examples of the API's documentation, run as they stand there; its page in a real browser."""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


@pytest.fixture(scope="module")
def examples(python_web: Any) -> dict[str, str]:
    """The examples as the page shows them, by language."""
    text = python_web.request("GET", "/api/docs", Accept="text/html").body.decode()
    found = re.findall(r"<h3>(\w+)</h3>\s*<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)
    return {language: html.unescape(example) for language, example in found}


@pytest.fixture
def photos(tmp_path: Path, sample: bytes) -> Path:
    (tmp_path / "photo.jpg").write_bytes(sample)
    (tmp_path / "other.jpg").write_bytes(sample[:1000])
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_examples_print_answers(examples: dict[str, str], photos: Path) -> None:
    shown = run(["bash", "-ec", examples["curl"]], photos).splitlines()
    one, several, models = (json.loads(line) for line in shown if line)
    assert one["results"][0]["label"]
    assert several["results"][0]["model"]["name"] == "food_classifier_onnx"
    assert several["results"][1]["error"]["code"] == "broken_picture"
    assert models["default"] == "food_classifier"


def test_the_python_example_prints_the_label(examples: dict[str, str], photos: Path) -> None:
    shown = run([sys.executable, "-c", examples["Python"]], photos)
    assert re.fullmatch(r"[A-Z][\w/ ]+ \d+%(, not sure)?\n", shown)


@pytest.fixture
def page() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM} (Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(60_000)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        yield page
        browser.close()
        assert not problems


ASK = """async ([example, photo]) => {
  const classify = new Function(`${example}; return classify;`)();
  const bytes = Uint8Array.from(atob(photo), (letter) => letter.charCodeAt(0));
  return classify([new File([bytes], "photo.jpg"), new File(["text"], "text.txt")]);
}"""


def test_the_javascript_example_answers_in_a_browser_and_on_a_phone_nothing_sticks_out(
    examples: dict[str, str], python_web: Any, page: Any, sample: bytes
) -> None:
    page.goto(f"{python_web.url}/api/docs")
    told = page.evaluate(ASK, [examples["JavaScript"], base64.b64encode(sample).decode()])
    assert told[0].startswith("photo.jpg: ")
    assert told[1].startswith("text.txt: this is not a picture")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
