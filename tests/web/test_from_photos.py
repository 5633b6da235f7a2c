"""A minute's way: a folder of photos becomes a classifier with a page of its own, in the menu "Yours"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.life import gourmet, home
from support.triton import some_models
from support.up import Up

from gourmet.pictures.made_up import views

__all__ = ["home"]  # the fixture
DRAWINGS = Path(__file__).parents[1] / "drawings"
KINDS = ("eggs", "fruit", "noodles")


def drawn(kind: str, count: int, seed: int) -> list[bytes]:
    return views((DRAWINGS / f"{kind}.jpg").read_bytes(), count, size=(240, 200), seed=seed)


def test_a_folder_of_photos_becomes_a_page_that_answers_a_new_photo_rightly(
    visit: Callable[..., Page], home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    up = Up(f"--model-repository={models}", f"--model-repository={home / 'models'}", tmp=tmp_path / "tmp")
    request.addfinalizer(up.stop)
    up.wait_for("ready after")
    for kind in KINDS:
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number, photo in enumerate(drawn(kind, 8, seed=1)):
            (tmp_path / "photos" / kind / f"{number}.jpg").write_bytes(photo)
    shown = gourmet("new", "drawn", "--data", tmp_path / "photos")
    assert f"http://127.0.0.1:{up.port}/classify/drawn" in shown

    page = visit(f"http://127.0.0.1:{up.port}/")
    page.locator("nav summary", has_text="Yours").click()
    page.locator("nav").get_by_role("link", name="Drawn").click()
    (new,) = drawn("noodles", 1, seed=5)
    page.set_input_files("#file", [{"name": "new.jpg", "mimeType": "image/jpeg", "buffer": new}])
    card = page.locator(".card", has_text="new.jpg")
    expect(card.locator(".top .name").first).to_have_text("noodles")
    card.get_by_role("button", name="Not right?").click()
    card.locator(".correction").get_by_role("button", name="eggs", exact=True).click()
    expect(card.locator(".said")).to_contain_text("You said: eggs.")
    expect(page.locator("#teach")).to_contain_text("7 more photos")
    card.locator(".said").get_by_role("button", name="Undo").click()
    expect(page.locator("#teach")).to_contain_text("corrected photos: 0")

    gourmet("remove", "drawn", "--yes")
    page.goto(f"http://127.0.0.1:{up.port}/")
    expect(page.locator("nav summary", has_text="Yours")).to_have_count(0)
