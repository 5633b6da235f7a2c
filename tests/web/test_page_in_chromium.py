"""The page as people use it, in a real browser, before the real app and a real Triton."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gourmet.systems.food11 import contract

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
LABELS = "|".join(map(re.escape, contract.LABELS))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("no Chromium here: `apt-get install chromium`")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield chromium
        chromium.close()


class Visit:
    """A page with everything that went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, kind: str, text: str) -> None:
        # A refused photo is an HTTP error, which Chromium itself writes down.
        if kind in ("error", "warning") and "the server responded with a status of 4" not in text:
            self.complaints.append(text)


@pytest.fixture(params=[(390, 844), (1280, 900)], ids=["phone", "desktop"])
def visit(request: pytest.FixtureRequest, browser: Browser, python_web: Any) -> Iterator[Visit]:
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    visit = Visit(context.new_page())
    visit.page.goto(python_web.url)
    yield visit
    context.close()
    assert visit.complaints == []


@pytest.fixture
def photo(tmp_path: Path, sample: bytes) -> Path:
    path = tmp_path / "eggs.jpg"
    path.write_bytes(sample)
    return path


def test_a_chosen_photo_is_shown_and_named(visit: Visit, photo: Path) -> None:
    page = visit.page
    page.set_input_files("#file", photo)
    expect(page.locator(".answer h2")).to_contain_text(re.compile(LABELS), timeout=20_000)
    expect(page.locator(".top li")).to_have_count(5)
    expect(page.locator("#preview")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("food_classifier")
    expect(page.locator(".facts")).to_contain_text("ms")
    assert page.evaluate("document.querySelector('#preview').naturalWidth") == 640
    # The page is not wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_garbage_is_refused_in_words_and_the_next_photo_works(
    visit: Visit, photo: Path, tmp_path: Path
) -> None:
    garbage = tmp_path / "photo.jpg"
    garbage.write_bytes(b"this is no photo")
    page = visit.page
    page.set_input_files("#file", garbage)
    expect(page.locator(".problem")).to_contain_text("not a picture")
    expect(page.locator("#preview")).to_be_hidden()
    page.set_input_files("#file", photo)
    expect(page.locator(".answer")).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)


def test_a_photo_that_is_too_large_is_refused_before_it_is_sent(visit: Visit, tmp_path: Path) -> None:
    large = tmp_path / "large.jpg"
    large.write_bytes(b"\xff" * 10_000_001)
    sent: list[str] = []
    visit.page.on("request", lambda request: sent.append(request.method))
    visit.page.set_input_files("#file", large)
    expect(visit.page.locator(".problem h2")).to_have_text("Too large")
    assert "POST" not in sent


DATA_TRANSFER = """async (address) => {
  const photo = await (await fetch(address)).blob();
  const data = new DataTransfer();
  data.items.add(new File([photo], 'eggs.jpg', {type: 'image/jpeg'}));
  return data;
}"""


def test_a_dropped_and_a_pasted_photo_are_classified(visit: Visit) -> None:
    page = visit.page
    data = page.evaluate_handle(DATA_TRANSFER, "/sample.jpg")
    page.dispatch_event(".plate", "drop", {"dataTransfer": data})
    expect(page.locator(".answer")).to_be_visible()
    page.reload()
    expect(page.locator(".answer")).to_have_count(0)
    page.evaluate(
        f"""async (address) => document.dispatchEvent(
          new ClipboardEvent('paste', {{clipboardData: await ({DATA_TRANSFER})(address), bubbles: true}}))""",
        "/sample.jpg",
    )
    expect(page.locator(".answer")).to_be_visible()


def test_the_keyboard_reaches_the_chooser_and_the_sample(visit: Visit) -> None:
    page = visit.page
    page.keyboard.press("Tab")  # the brand
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    for key in ("Space", "Enter"):
        with page.expect_file_chooser(timeout=5_000):
            page.keyboard.press(key)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "sample"
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_be_visible()
    assert page.url.endswith("/")


def test_everything_to_press_is_large_enough_for_a_finger(visit: Visit) -> None:
    for selector in (".plate", "#sample", ".brand"):
        box = visit.page.locator(selector).bounding_box()
        assert box
        assert min(box["width"], box["height"]) >= 44, selector


def test_without_a_script_the_form_answers_with_a_page(
    browser: Browser, python_web: Any, photo: Path, tmp_path: Path
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(python_web.url)
    page.set_input_files("#file", photo)
    page.click("button")
    assert page.url.endswith("/predict")
    expect(page.locator(".answer h2")).to_be_visible()
    page.click("text=Ask about another photo")
    garbage = tmp_path / "notes.txt"
    garbage.write_bytes(b"this is no photo")
    page.set_input_files("#file", garbage)
    page.click("button")
    expect(page.locator(".problem")).to_contain_text("not a picture")
    context.close()


def test_when_the_app_is_away_the_page_says_so(browser: Browser, python_web: Any, photo: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(python_web.url)
    context.set_offline(True)
    page.set_input_files("#file", photo)
    expect(page.locator(".problem h2")).to_have_text("No answer")
    context.set_offline(False)
    page.set_input_files("#file", photo)
    expect(page.locator(".answer")).to_be_visible()
    context.close()
