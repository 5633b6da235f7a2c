"""The food page as people use it, in a real browser, before the real app and a real Triton."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.pages import PHONE, fits, photo

from gourmet.systems.food11 import contract

LABELS = re.compile("|".join(map(re.escape, contract.SYSTEM.labels)))

FILES = """async (addresses) => {
  const data = new DataTransfer();
  for (const address of addresses) {
    const photo = await (await fetch(address)).blob();
    data.items.add(new File([photo], address.split('/').at(-1), {type: 'image/jpeg'}));
  }
  return data;
}"""

LARGE = """() => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(10_000_001)], 'large.tif', {type: 'image/tiff'}));
  const file = document.querySelector('#file');
  file.files = data.files;
  file.dispatchEvent(new Event('change', {bubbles: true}));
}"""


@pytest.fixture(params=["phone", pytest.param("desktop", marks=pytest.mark.slow)])
def page(request: pytest.FixtureRequest, visit: Callable[..., Page], python_web: Any) -> Page:
    return visit(python_web.url, **(PHONE if request.param == "phone" else {}))


@pytest.fixture
def desk(visit: Callable[..., Page], python_web: Any) -> Page:
    return visit(python_web.url)


GARBAGE = photo(b"this is no photo", "notes.jpg")


@pytest.mark.smoke
def test_a_chosen_photo_is_shown_and_answered(page: Page, sample: bytes, python_web: Any) -> None:
    with page.expect_response("**/api/v1/classify?*") as answered:
        page.set_input_files("#file", photo(sample))
    result = answered.value.json()["results"][0]
    card = page.locator(".card")
    expect(card.locator("h3")).to_contain_text(LABELS)
    expect(card.locator("h3")).to_contain_text(result["label"])
    expect(card.locator("h3")).to_contain_text(f"{100 * result['probability']:.0f} %")
    expect(card.locator(".doubt")).to_have_count(0 if result["sure"] else 1)
    expect(card.locator(".top li")).to_have_count(5)
    expect(card.locator(".facts")).to_contain_text("food_classifier version 1")
    expect(card.locator(".photo img")).to_be_visible()
    expect(page.locator("#spoken")).to_contain_text(result["label"])
    card.locator(".time summary").click()
    phases = card.locator(".waterfall .name")
    expect(phases.last).to_have_text("Response")
    shown = set(phases.all_inner_texts())
    assert {"Upload", "Receive", "Decode"} <= shown
    # Of a photo that was alone with its model, its own time in Triton is told apart.
    inside = result["inside"]
    is_alone = inside["requests"] == 1 and inside["queue"] <= result["timings_ms"]["triton"]
    assert ({"To Triton and back", "Triton’s queue", "Inference"} <= shown) == is_alone
    # The same answer as to a program that asks the old way.
    reply = python_web.predict(sample).json
    assert (reply["label"], reply["sure"]) == (result["label"], result["sure"])
    assert reply["probability"] == pytest.approx(result["probability"], abs=1e-5)
    # The page is not wider than the screen.
    assert fits(page)


def test_a_bad_photo_among_several_fails_alone(page: Page, sample: bytes) -> None:
    page.set_input_files("#file", [photo(sample, "a.jpg"), GARBAGE, photo(sample, "b.jpg")])
    expect(page.locator(".card[data-state=answered]")).to_have_count(2)
    bad = page.locator(".card[data-state=failed]")
    expect(bad).to_contain_text("Not a photo")
    expect(bad.locator("[data-do]:visible")).to_have_text(["Remove"])  # to try again would not help
    expect(bad).to_contain_text("not a picture")
    expect(bad).to_contain_text("notes.jpg")
    assert page.locator("figcaption").all_inner_texts() == ["a.jpg", "notes.jpg", "b.jpg"]
    bad.get_by_role("button", name="Remove").click()
    expect(page.locator(".card")).to_have_count(2)
    page.click("#clear")
    expect(page.locator(".card")).to_have_count(0)
    expect(page.locator("#empty")).to_be_visible()


def test_at_most_two_photos_are_sent_at_once(desk: Page, sample: bytes) -> None:
    under_way: set[Any] = set()
    max_under_way = 0

    def begun(request: Any) -> None:
        nonlocal max_under_way
        if request.method == "POST":
            under_way.add(request)
            max_under_way = max(max_under_way, len(under_way))

    def ended(request: Any) -> None:
        under_way.discard(request)

    desk.on("request", begun)
    desk.on("requestfinished", ended)
    desk.set_input_files("#file", [photo(sample, f"{number}.jpg") for number in range(6)])
    expect(desk.locator(".card[data-state=answered]")).to_have_count(6)
    assert 1 <= max_under_way <= 2


def test_a_photo_that_is_too_large_is_refused_before_it_is_sent(desk: Page) -> None:
    sent: list[str] = []
    desk.on("request", lambda request: sent.append(request.method))
    desk.evaluate(LARGE)
    expect(desk.locator(".problem h3")).to_have_text("Too large")
    assert "POST" not in sent


def test_dropped_and_pasted_photos_are_answered(desk: Page) -> None:
    data = desk.evaluate_handle(FILES, ["/sample.jpg", "/samples/09_green-soup.jpg"])
    desk.dispatch_event(".drop-zone", "drop", {"dataTransfer": data})
    expect(desk.locator(".card[data-state=answered]")).to_have_count(2)
    desk.evaluate(
        f"""async (addresses) => document.dispatchEvent(
          new ClipboardEvent('paste', {{clipboardData: await ({FILES})(addresses), bubbles: true}}))""",
        ["/sample.jpg"],
    )
    expect(desk.locator(".card[data-state=answered]")).to_have_count(3)


def test_the_camera_is_offered_on_touch_screens(page: Page, python_web: Any) -> None:
    touch = page.evaluate("navigator.maxTouchPoints > 0")
    expect(page.get_by_text("Take a photo")).to_be_visible(visible=touch)
    assert page.get_attribute("#camera", "capture") == "environment"
    for selector in (".drop-zone", ".sample >> nth=0", ".brand", "nav a >> nth=1", "#model"):
        box = page.locator(selector).bounding_box()
        assert box
        assert min(box["width"], box["height"]) >= 44, selector


def test_the_keyboard_alone_is_enough(desk: Page) -> None:
    def focus_on(target: str) -> None:
        for _ in range(12):
            desk.keyboard.press("Tab")
            if desk.evaluate("target => document.activeElement.matches(target)", target):
                return
        raise AssertionError(f"Tab does not reach {target}")

    # Choosers are caught from here on: a listener of the last moment may miss one, which then closes.
    desk.on("filechooser", lambda _: None)
    desk.keyboard.press("Tab")
    assert desk.evaluate("document.activeElement.className") == "skip"
    focus_on("#file")
    for key in ("Space", "Enter"):
        with desk.expect_file_chooser(timeout=60_000) as opened:
            desk.keyboard.press(key)
        opened.value.set_files([])  # one that is still open keeps the next from opening
    focus_on("#model")
    focus_on(".sample")
    desk.keyboard.press("Enter")
    expect(desk.locator(".card[data-state=answered]")).to_have_count(1)
    focus_on(".time summary")
    desk.keyboard.press("Enter")
    expect(desk.locator(".waterfall")).to_be_visible()
    focus_on(".card .menu summary")
    desk.keyboard.press("Enter")
    focus_on("[data-do=remove]")
    desk.keyboard.press("Enter")
    expect(desk.locator(".card")).to_have_count(0)
    assert desk.evaluate("document.activeElement.id") == "file"  # and not lost


def test_a_photo_can_be_cancelled_and_sent_again(desk: Page, sample: bytes) -> None:
    desk.route("**/api/v1/classify?*", lambda route: None)  # the answer does not come
    desk.set_input_files("#file", photo(sample))
    desk.get_by_role("button", name="Cancel").click()
    expect(desk.locator(".problem")).to_contain_text("Cancelled")
    desk.unroute("**/api/v1/classify?*")
    desk.get_by_role("button", name="Try again").click()
    expect(desk.locator(".card[data-state=answered]")).to_have_count(1)


def test_another_model_answers_when_it_is_chosen(desk: Page, sample: bytes) -> None:
    offered = desk.locator("#model option").all_inner_texts()
    assert "food_classifier (default)" in offered
    assert {"food_classifier_int8", "food_classifier_onnx"} <= set(offered)
    assert desk.input_value("#model") == "food_classifier"
    desk.select_option("#model", "food_classifier_onnx")
    desk.set_input_files("#file", photo(sample))
    expect(desk.locator(".facts")).to_contain_text("food_classifier_onnx")


def test_the_history_stays_in_the_browser_and_can_be_exported_and_cleared(desk: Page) -> None:
    desk.locator(".sample", has_text="Green soup").click()
    expect(desk.locator("#history")).to_be_visible()
    desk.reload()
    desk.click("#history summary")
    expect(desk.locator("#history")).to_contain_text("Nothing is stored on the server")
    expect(desk.locator("#history-list li")).to_have_count(1)
    expect(desk.locator("#history-list img")).to_be_visible()
    expect(desk.locator("#history-list li")).to_contain_text("food_classifier")
    with desk.expect_download() as download:
        desk.click("#history-json")
    entry = json.loads(Path(download.value.path()).read_text())[0]
    assert (entry["file"], entry["model"]) == ("green-soup.jpg", "food_classifier")
    with desk.expect_download() as download:
        desk.click("#history-csv")
    row = next(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert (row["file"], row["label"], float(row["probability"])) == (
        "green-soup.jpg",
        entry["label"],
        entry["probability"],
    )
    replies = ["dismiss", "accept"]
    desk.on("dialog", lambda dialog: getattr(dialog, replies.pop(0))())
    for left in (1, 0):  # it asks first
        desk.get_by_role("button", name="Clear history").click()
        expect(desk.locator("#history-list li")).to_have_count(left)
    expect(desk.locator("#history")).to_be_hidden()


def test_a_photo_waits_while_the_app_is_unreachable(
    visit: Callable[..., Page], python_web: Any, sample: bytes
) -> None:
    page = visit(python_web.url, forgiven=("ERR_INTERNET_DISCONNECTED",))
    expect(page.locator("#status")).to_be_hidden()
    page.context.set_offline(True)
    page.set_input_files("#file", photo(sample))
    expect(page.locator("#status")).to_contain_text("cannot be reached")
    expect(page.locator(".card[data-state=held]")).to_have_count(1)
    page.context.set_offline(False)
    expect(page.locator(".card[data-state=answered]")).to_have_count(1)
    expect(page.locator("#status")).to_contain_text("back")
