"""What a visitor tries first: each sample photo is named rightly and surely; what is no food is not named."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Page, expect
from support.pages import photo

from gourmet.systems.food11.contract import SAMPLES, SYSTEM

# A sample's name begins with the number of its class.
PHOTOS = {path.name: SYSTEM.labels[int(path.name[:2])] for path in sorted(SAMPLES.glob("*.jpg"))}


def page_of_text() -> Image.Image:
    page = Image.new("RGB", (600, 800), "white")
    lines = "\n".join(["The quick brown fox jumps over the lazy dog, and it is no dish."] * 40)
    ImageDraw.Draw(page).multiline_text((40, 40), lines, "black", spacing=8)
    return page


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8))


NO_FOOD = {"red.png": Image.new("RGB", (400, 300), "red"), "noise.png": noise(), "text.png": page_of_text()}


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("model", ["food_classifier", "food_classifier_int8", "food_classifier_onnx"])
def test_every_served_form_is_right_and_sure_of_every_sample_and_names_no_dish_where_is_none(
    python_web: Any, model: str
) -> None:
    def ask(data: bytes) -> Any:
        reply = python_web.request("POST", f"/api/v1/classify?model={model}", data, Content_Type="image/*")
        return reply.json["results"][0]

    told = {name: ask((SAMPLES / name).read_bytes()) for name in PHOTOS}
    assert {name: (each["label"], each["sure"], each["relevant"]) for name, each in told.items()} == {
        name: (label, True, True) for name, label in PHOTOS.items()
    }
    others = {name: ask(png(picture)) for name, picture in NO_FOOD.items()}
    assert {name: (each["relevant"], each["sure"]) for name, each in others.items()} == dict.fromkeys(
        NO_FOOD, (False, False)
    )
    assert all(each["food"] < 0.5 for each in others.values())


def test_the_first_click_on_each_sample_is_answered_and_no_food_is_said_to_be_none(
    visit: Callable[..., Page], python_web: Any
) -> None:
    page = visit(python_web.url)
    for name, label in PHOTOS.items():
        shown = name.partition("_")[2]
        page.locator(f'.sample[data-name="{shown}"]').click()
        card = page.get_by_label(shown, exact=True)
        expect(card.locator("h3 .label")).to_have_text(label)
        expect(card.locator(".doubt")).to_have_count(0)
    for name, picture in NO_FOOD.items():
        page.set_input_files("#file", photo(png(picture), name))
        expect(page.get_by_label(name, exact=True).locator("h3")).to_have_text("This does not look like food")
