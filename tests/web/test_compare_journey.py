"""One photo through every model that Triton has ready, with a script and without."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect
from support.pages import PHONE, fits, photo

NAMES = ["food_classifier", "food_classifier_int8", "food_classifier_onnx"]


def test_every_ready_model_answers_side_by_side(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/compare")
    expect(page.locator("nav a[aria-current]")).to_have_text("Compare")
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
        expect(panel).to_contain_text(re.compile(r"\d ms"))
    expect(panels.first).to_contain_text("default model")


def test_a_card_compares_its_photo_too(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(python_web.url, **PHONE)
    page.locator(".sample", has_text="Cupcakes").click()
    page.get_by_role("button", name="Compare models: cupcakes.jpg").click()
    expect(page.locator(".card .panel")).to_have_count(3)
    assert fits(page)


def test_without_a_script_the_form_compares_and_the_other_form_takes_a_model(
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
    page.click("nav >> text=Compare")
    page.set_input_files("#file", eggs)
    page.click("form button")
    expect(page.locator(".panel")).to_have_count(3)
    expect(page.locator(".compared h1")).to_contain_text("models")
