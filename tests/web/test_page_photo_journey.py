"""A phone's photo: large, held upright, turned by its metadata; made smaller before it is sent."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect
from support.pages import PHONE, photo

# As phones write it: the sensor lies on its side, the tag says how to turn the picture.
ORIENTATION, TURNED = 0x0112, 6
SOUP = Path(__file__).parents[1] / "drawings" / "soup.jpg"


@pytest.fixture(scope="module")
def phone_photo() -> bytes:
    """Twelve megapixels with a bowl that is off the middle, so that a wrong turn shows another square."""
    random = np.random.default_rng(5)
    scene = Image.open(SOUP).resize((4000, 3000), Image.Resampling.BICUBIC)
    grain = random.normal(0, 6, (3000, 4000, 1)).astype(np.float32)
    shade = np.linspace(0.55, 1.15, 4000, dtype=np.float32)[None, :, None]
    scene = Image.fromarray(np.clip(np.asarray(scene) * shade + grain, 0, 255).astype(np.uint8))
    exif = Image.Exif()
    exif[ORIENTATION] = TURNED
    out = io.BytesIO()
    scene.save(out, "JPEG", quality=92, exif=exif)
    return out.getvalue()


@pytest.mark.parametrize("model", ["food_classifier", "food_classifier_onnx"])
def test_a_large_turned_photo_is_sent_small_and_answered_the_same(
    visit: Callable[..., Page], python_web: Any, onnx_web: Any, phone_photo: bytes, model: str
) -> None:
    web = python_web if model == "food_classifier" else onnx_web
    page = visit(web.url, **PHONE)
    with page.expect_response("**/api/v1/classify*") as answered:
        page.set_input_files("#camera", photo(phone_photo, "IMG_0001.jpg"))
    told = answered.value.json()["results"][0]
    card = page.locator(".card[data-state=answered]")
    expect(card.locator(".facts")).to_contain_text("made smaller in the browser")
    sent = int(answered.value.request.all_headers()["content-length"])
    assert sent < 400_000 < len(phone_photo)
    # What was sent is shown: upright, the shorter side three times what the model sees.
    expect(card.locator("img")).to_be_visible()
    assert page.evaluate(
        "(({naturalWidth: w, naturalHeight: h}) => [w, h])(document.querySelector('.card img'))"
    ) == [672, 896]
    whole = web.predict(phone_photo).json
    assert told["label"] == whole["label"]
    assert told["probability"] == pytest.approx(whole["probability"], abs=0.03)
