"""The cards of answers and of comparisons: on a phone, with long labels, by keyboard, after a refresh."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect
from support.pages import PHONE, choose, fits, photo, wait_until

SCREENS = {"desktop": {}, "phone": PHONE}
LABELS = (
    "Mediterranean vegetables with rice",
    "slow_cooked_beef_stroganoff_with_noodles",
    "Vegetable/Fruit",
    "Internationalization",
    "Egg",
)
# For each of the list's names: is it clear of its bar, and is none of its words on two lines?
MEASURED = """rows => rows.map(row => {
  const name = row.querySelector('.name');
  const range = document.createRange();
  range.selectNodeContents(name);
  const [text, bar] = [range.getBoundingClientRect(), row.querySelector('.bar').getBoundingClientRect()];
  const nodes = [...name.childNodes].filter(node => node.nodeType === Node.TEXT_NODE);
  const broken = nodes.flatMap(node => [...node.data.matchAll(/\\S+/g)].filter(({ 0: word, index }) => {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    return new Set([...range.getClientRects()].map(rect => rect.top)).size > 1;
  }).map(found => found[0]));
  return { clear: text.right <= bar.left + 0.5, broken };
})"""


def answered(page: Page, cards: int = 1) -> None:
    expect(page.locator(".card[data-state=answered]")).to_have_count(cards)


def test_on_a_phone_the_answer_to_one_photo_is_in_view(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(python_web.url, reduced_motion="reduce", **PHONE)
    upright = io.BytesIO()
    Image.linear_gradient("L").resize((600, 1000)).convert("RGB").save(upright, "JPEG")
    page.set_input_files("#file", photo(upright.getvalue()))
    answered(page)
    expect(page.locator(".card img")).to_be_visible()
    expect(page.locator(".card h3")).to_be_in_viewport(ratio=1)
    expect(page.locator(".card .top")).to_be_in_viewport(ratio=1)


def test_a_new_answer_does_not_scroll_a_page_that_the_reader_scrolled(
    visit: Callable[..., Page], python_web: Any, sample: bytes
) -> None:
    page = visit(python_web.url, reduced_motion="reduce", **PHONE)
    held: list[Route] = []
    page.route("**/api/v1/classify?*", lambda route: held.append(route))
    page.set_input_files("#file", photo(sample))
    expect(page.locator(".card[data-state=busy] .doing")).to_have_text("Classifying …")
    page.evaluate("scrollTo(0, 0); dispatchEvent(new Event('touchmove'))")
    wait_until(page, lambda: page.evaluate("scrollY === 0") and held)
    held[0].continue_()
    answered(page)
    assert page.evaluate("scrollY") == 0


@pytest.mark.parametrize("screen", SCREENS.values(), ids=SCREENS.keys())
def test_long_labels_do_not_overlap_their_bars_or_break_words(
    visit: Callable[..., Page], python_web: Any, sample: bytes, screen: dict[str, Any]
) -> None:
    page = visit(python_web.url, **screen)

    def with_long_labels(route: Route) -> None:
        reply = route.fetch().json()
        result = reply["results"][0]
        for guess, label in zip(result["top"], LABELS, strict=True):
            guess["label"] = label
        result["label"] = LABELS[0]
        route.fulfill(json=reply)

    page.route("**/api/v1/classify?*", with_long_labels)
    page.set_input_files("#file", photo(sample))
    answered(page)
    rows = page.locator(".top li")
    assert rows.locator(".name").all_inner_texts() == list(LABELS)
    assert rows.evaluate_all(MEASURED) == [{"clear": True, "broken": []}] * len(LABELS)
    assert fits(page)


def test_the_file_input_is_announced_once_and_not_as_invalid(
    visit: Callable[..., Page], python_web: Any
) -> None:
    page = visit(python_web.url)
    chooser = page.locator("#file")
    expect(chooser).to_have_accessible_name("Choose photos")
    session = page.context.new_cdp_session(page)
    node = session.send("Runtime.evaluate", {"expression": "document.querySelector('#file')"})
    announced = session.send("Accessibility.getPartialAXTree", {"objectId": node["result"]["objectId"]})[
        "nodes"
    ][0]
    properties = {entry["name"]: entry["value"].get("value") for entry in announced["properties"]}
    assert properties.get("invalid", "false") == "false"
    assert announced["description"]["value"].count("JPEG") == 1
    assert "JPEG" not in announced["name"]["value"]


def test_removing_a_card_moves_the_focus_to_the_next_card_or_the_chooser(
    visit: Callable[..., Page], python_web: Any, sample: bytes
) -> None:
    page = visit(python_web.url)
    page.set_input_files("#file", [photo(sample, f"{name}.jpg") for name in "abc"])
    answered(page, 3)
    for removed, focused in (("b", "c.jpg"), ("c", "a.jpg")):
        choose(page.get_by_label(f"{removed}.jpg", exact=True), "remove")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == focused
    choose(page.get_by_label("a.jpg", exact=True), "remove")
    assert page.evaluate("document.activeElement.id") == "file"


def test_cards_survive_a_refresh_until_they_are_cleared(
    visit: Callable[..., Page], python_web: Any, sample: bytes
) -> None:
    page = visit(python_web.url)
    page.set_input_files("#file", [photo(sample, "a.jpg"), photo(sample, "b.jpg")])
    answered(page, 2)
    shown = page.locator(".card h3").all_inner_texts()
    wait_until(
        page, lambda: page.evaluate("JSON.parse(sessionStorage['gourmetgram:cards:/'] ?? '[]').length === 2")
    )
    page.reload()
    answered(page, 2)
    assert page.locator(".card h3").all_inner_texts() == shown
    assert page.locator("figcaption").all_inner_texts() == ["a.jpg", "b.jpg"]
    expect(page.locator(".card img").first).to_have_js_property("naturalWidth", 448)
    # The photo is there too: such a card can be compared, explained and tried again.
    expect(page.locator("[data-do=why]")).to_have_count(2)
    choose(page.locator(".card").first, "again")
    answered(page, 2)
    choose(page.get_by_label("a.jpg", exact=True), "remove")
    page.reload()
    answered(page, 1)
    page.get_by_role("button", name="Remove all answers").click()
    page.reload()
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator(".card")).to_have_count(0)


def test_a_comparison_survives_a_refresh(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/compare")
    page.locator(".sample", has_text="Green soup").click()
    expect(page.locator(".panel")).to_have_count(3)
    wait_until(page, lambda: page.evaluate("'gourmetgram:cards:/compare' in sessionStorage"))
    shown = page.locator(".card").inner_text()
    page.reload()
    expect(page.locator(".panel")).to_have_count(3)
    assert page.locator(".card").inner_text() == shown


@pytest.mark.parametrize("place", ["/", "/compare", "/digits"])
def test_a_request_whose_connection_was_reset_is_sent_again_once(
    visit: Callable[..., Page], python_web: Any, place: str
) -> None:
    page = visit(python_web.url + place, forgiven=("ERR_CONNECTION_RESET",))
    urls: list[str] = []

    def reset_first(route: Route) -> None:
        urls.append(route.request.url)
        if len(urls) == 1:
            route.abort("connectionreset")
        else:
            route.continue_()

    # The page itself, and not the status above it, recovers: nobody is told that something was wrong.
    trouble = "[data-state=held], .problem:not([hidden])"
    page.evaluate(
        "trouble => new MutationObserver(() => { window.troubled ||= !!document.querySelector(trouble) })"
        ".observe(document.body, { subtree: true, attributes: true })",
        trouble,
    )
    page.route("**/api/v1/classify?*", reset_first)
    page.route("**/api/v1/digits", reset_first)
    page.route("**/compare?*", reset_first)
    if place == "/digits":
        page.get_by_role("button", name="Ready-made 4").click()
        expect(page.locator("#label")).to_have_text("4")
    else:
        page.locator(".sample", has_text="Green soup").click()
        answered(page)
    assert len(urls) == 2
    assert not page.evaluate("window.troubled ?? false")


def test_the_page_describes_its_purpose_and_its_buttons(
    visit: Callable[..., Page], python_web: Any, sample: bytes
) -> None:
    page = visit(python_web.url)
    expect(page.get_by_role("heading", name="Recognises 11 kinds of food")).to_be_visible()
    expect(page.locator("footer")).to_contain_text("Default model: food_classifier")
    page.set_input_files("#file", photo(sample))
    answered(page)
    page.get_by_label("More: eggs.jpg").click()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Try again")).to_be_hidden()
    expect(page.locator(".time summary")).to_contain_text("round trip")
    expect(page.locator(".facts")).to_contain_text("sent unchanged")
    expect(page.locator("#history summary")).to_contain_text("History")
    bare = visit(python_web.url, java_script_enabled=False)
    expect(bare.get_by_role("button", name="Classify", exact=True)).to_be_visible()


NAMES = ["food_classifier", "food_classifier_int8", "food_classifier_onnx"]


def test_every_ready_model_answers_side_by_side(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/compare")
    page.locator(".sample", has_text="Green soup").click()
    expect(page.locator(".card .verdict")).to_contain_text(re.compile("models (agree|say|guess)|different"))
    panels = page.locator(".panel")
    expect(panels).to_have_count(3)
    assert panels.locator("h4").all_inner_texts() == NAMES
    for name, kind, sent in zip(NAMES, ("photo", "pixels", "tensor"), ("24", "151", "602"), strict=True):
        panel = panels.filter(has=page.get_by_text(name, exact=True))
        expect(panel.locator(".says")).to_contain_text("%")
        expect(panel).to_contain_text(kind)
        expect(panel).to_contain_text(f"{sent} KB")
        expect(panel).to_contain_text(re.compile(r"\d ms \(\d+–\d+\)"))
    expect(panels.first).to_contain_text("default model")


def test_a_card_compares_its_photo_too(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(python_web.url, **PHONE)
    page.locator(".sample", has_text="Cupcakes").click()
    choose(page.get_by_label("cupcakes.jpg", exact=True), "compare")
    expect(page.locator(".card .panel")).to_have_count(3)
    assert fits(page)
    menu = page.locator("header nav").bounding_box()
    assert menu
    assert menu["height"] < 60  # a line


def test_without_javascript_one_form_compares_and_the_other_takes_a_model(
    visit: Callable[..., Page], python_web: Any, sample: bytes
) -> None:
    page = visit(python_web.url, java_script_enabled=False)
    eggs = photo(sample)
    page.set_input_files("#file", eggs)
    page.select_option("#model", "food_classifier_onnx")
    page.click("form button")
    assert page.url.endswith("/predict")
    expect(page.locator(".answer")).to_contain_text("food_classifier_onnx")
    page.click("text=Classify another photo")
    page.set_input_files("#file", photo(b"no photo at all", "a.txt"))
    page.click("form button")
    expect(page.locator(".problem")).to_contain_text("not a picture")
    page.goto(f"{python_web.url}/compare")
    page.set_input_files("#file", eggs)
    page.click("form button")
    expect(page.locator(".panel")).to_have_count(3)
    expect(page.locator(".compared h1")).to_contain_text("models")
