"""Why this answer: heat maps by the served models, and on a card in a real browser."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect
from support.pages import PHONE, fits, violations

from gourmet.systems.food11 import contract

EXPLAIN = "/api/v1/explain"
SOUP = contract.SAMPLES / "09_green-soup.jpg"
# Where the soup stands on the grey table: left, top, right and bottom of 224 pixels.
PLATE = (120, 8, 216, 104)


@pytest.fixture(scope="module")
def table() -> Image.Image:
    """A small plate of soup in the upper right of an empty grey table."""
    drawn = Image.open(SOUP).convert("RGB")
    side = min(drawn.size)
    left, top = (drawn.width - side) // 2, (drawn.height - side) // 2
    plate = drawn.crop((left, top, left + side, top + side)).resize((96, 96), Image.Resampling.LANCZOS)
    picture = Image.new("RGB", (224, 224), (128, 128, 128))
    picture.paste(plate, PLATE[:2])
    return picture


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("model", ["food_classifier", "food_classifier_int8", "food_classifier_onnx"])
def test_the_heat_map_of_every_model_finds_the_planted_plate(
    python_web: Any, table: Image.Image, model: str
) -> None:
    def ask(path: str, picture: Image.Image) -> Any:
        return python_web.request("POST", f"{path}model={model}", png(picture), Content_Type="image/png")

    reply = ask(f"{EXPLAIN}?grid=7&", table)
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    *progress, final = map(json.loads, reply.body.splitlines())
    assert [line["done"] for line in progress] == [*range(4, 49, 4), 49]
    assert (final["final"], final["model"]["name"]) == (True, model)
    falls = np.array(final["falls"])
    row, column = map(int, np.unravel_index(falls.argmax(), falls.shape))
    left, top, right, bottom = PLATE
    assert column * 32 < right
    assert (column + 1) * 32 > left
    assert row * 32 < bottom
    assert (row + 1) * 32 > top
    # The same cover, put on here and asked about by the ordinary way.
    covered = table.copy()
    colour = tuple(int(value) for value in np.asarray(table).mean(axis=(0, 1)).round())
    covered.paste(colour, (column * 32, row * 32, column * 32 + 32, row * 32 + 32))
    shares = [ask("/api/v1/classify?", picture).json["results"][0]["top"] for picture in (table, covered)]
    before, after = ({guess["label"]: guess["probability"] for guess in top} for top in shares)
    assert final["probability"] == pytest.approx(before[final["label"]], abs=2e-3)
    if final["label"] in after:
        assert falls.max() == pytest.approx(before[final["label"]] - after[final["label"]], abs=4e-3)


def explained(page: Page) -> Any:
    page.locator(".sample", has_text="Green soup").click()
    page.get_by_role("button", name="Why this answer? green-soup.jpg").click()
    why = page.locator(".why")
    words = re.compile("mattered most|No single region")
    expect(why.locator(".summary")).to_contain_text(words, timeout=300_000)
    return why


def test_a_card_explains_its_answer_in_a_picture_words_and_numbers(
    visit: Callable[..., Page], python_web: Any
) -> None:
    forgiven = ("willReadFrequently",)  # it is this test alone that reads the colours
    page = visit(python_web.url, reduced_motion="reduce", forgiven=forgiven)
    why = explained(page)
    words = why.locator(".summary").inner_text()
    assert why.locator("canvas").get_attribute("aria-label") == words
    expect(page.locator("#spoken")).to_have_text(words)
    expect(why).to_contain_text("food_classifier version 1, 246 inferences")
    expect(why).to_contain_text("only the square in the middle")  # as the photo is wider than high
    # The colours lie over the square and not beside it, as strong as the reader wants them.
    colours = """canvas => [0.03, 0.5].map(share => {
      const {width, height} = canvas;
      return [...canvas.getContext('2d').getImageData(width * share, height * 0.9, 1, 1).data].join();
    })"""
    canvas = why.locator("canvas")
    beside, within = canvas.evaluate(colours)
    slider = why.get_by_role("slider", name="Overlay opacity")
    slider.focus()
    page.keyboard.press("Home")
    assert slider.input_value() == "0"
    plain_beside, plain_within = canvas.evaluate(colours)
    assert (beside, within) != (plain_beside, plain_within)
    assert beside == plain_beside
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(why.locator("td")).to_have_count(9)
    assert violations(page) == []


@pytest.mark.slow
def test_the_explanation_works_on_a_phone_by_keyboard_and_after_a_cancel(
    visit: Callable[..., Page], onnx_web: Any
) -> None:
    busy_words = ("status of 503",)
    page = visit(onnx_web.url, forgiven=busy_words, reduced_motion="reduce", color_scheme="dark", **PHONE)
    page.locator(".sample", has_text="Green soup").click()
    button = page.get_by_role("button", name="Why this answer? green-soup.jpg")
    page.route("**/api/v1/explain*", lambda route: None)  # the answer does not come
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".why")).to_be_focused()
    expect(page.locator(".why progress")).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".why")).to_contain_text("Cancelled")
    expect(page.locator(".why")).to_be_focused()  # and not lost
    page.unroute("**/api/v1/explain*")
    busy = {"error": {"code": "overloaded", "message": "another is being made", "request_id": "1"}}
    page.route("**/api/v1/explain*", lambda route: route.fulfill(status=503, json=busy), times=1)
    button.click()
    expect(page.locator(".why .doing")).to_contain_text("this one is next")
    expect(page.locator(".why[aria-busy=false] .summary")).to_be_visible(timeout=300_000)
    assert fits(page)
    assert violations(page) == []
