"""Correct, learn, compare, use and undo on the page, with `gourmet up` as a user runs it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.life import home, status
from support.repeating import Repeating
from support.triton import some_models
from support.up import Up

from gourmet.pictures.made_up import views
from gourmet.stack.processes import wait_until

__all__ = ["home"]  # the fixture
DRAWINGS = Path(__file__).parents[1] / "drawings"
# By label, the drawing that it is said to be: what nobody would guess.
TAUGHT = {"Rice": "bread", "Meat": "soup", "Egg": "noodles"}
EACH = 8
JSON = {"Accept": "application/json"}


@pytest.fixture
def up(home: Path, tmp_path: Path) -> Iterator[Up]:
    models = some_models(tmp_path / "models", "food_classifier", "food_classifier_onnx")
    running = Up(f"--model-repository={models}", tmp=tmp_path / "tmp")
    running.wait_for("ready after")
    yield running
    if running.process.poll() is None:
        running.stop()


def photos() -> list[dict[str, Any]]:
    return [
        {"name": f"{label}-{number}.jpg", "mimeType": "image/jpeg", "buffer": view}
        for label, drawing in TAUGHT.items()
        for number, view in enumerate(
            views((DRAWINGS / f"{drawing}.jpg").read_bytes(), EACH, size=(400, 300), seed=1)
        )
    ]


def answer(url: str, data: bytes | None = None, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, data, {**JSON, **headers}), timeout=60) as reply:
        return json.load(reply)


def version(url: str) -> str:
    return str(answer(f"{url}/test")["model"]["version"])


@pytest.mark.slow
def test_24_corrections_are_learned_deployed_and_rolled_back_without_a_lost_request(
    visit: Callable[..., Page], up: Up, home: Path
) -> None:
    url = f"http://127.0.0.1:{up.port}"
    page = visit(url)
    panel = page.locator("#teach")
    panel.locator("summary").click()
    expect(panel).to_contain_text(str(home / "corrections" / "food11"))
    expect(panel.get_by_role("button", name="Learn")).to_be_disabled()

    page.set_input_files("#file", photos())
    expect(page.locator(".card:has(.top)")).to_have_count(3 * EACH, timeout=60_000)
    page.get_by_label("Compact view").uncheck()
    for label in TAUGHT:
        for number in range(EACH):
            card = page.locator(".card", has_text=f"{label}-{number}.jpg")
            card.scroll_into_view_if_needed()
            card.get_by_role("button", name="Not right?").click()
            card.locator(".correction").get_by_role("button", name=label, exact=True).click()
            expect(card.locator(".correction .note")).to_contain_text(f"kept as {label}")
    for label in TAUGHT:
        expect(panel).to_contain_text(f"{label}: {EACH}")

    panel.get_by_role("button", name="Learn").click()
    use = panel.get_by_role("button", name="Use it")
    expect(use).to_be_visible(timeout=120_000)
    panel.get_by_text("Class by class").click()
    own = panel.get_by_role("table", name="Your photos: how many are right")
    for label in TAUGHT:
        before, after = own.get_by_role("row", name=label).get_by_role("cell").all_inner_texts()[1:]
        assert int(after) > int(before)
    expect(panel.get_by_role("table", name="Held-out photos").get_by_role("row")).to_have_count(16)

    statuses: list[int] = []
    with Repeating(lambda *_: statuses.append(status(f"{url}/test"))):
        wait_until(lambda: len(statuses) > 3, 60, "the visitor has no answer")
        use.click()
        expect(panel).to_contain_text("Version 2, which learned your photos, answers now.", timeout=120_000)
        assert version(url) == "2"
        expect(page.locator(".outdated")).to_have_count(3 * EACH)
        expect(page.get_by_role("button", name="Ask again all")).to_be_visible()
        panel.get_by_role("button", name="Undo").click()
        expect(panel.get_by_role("button", name="Undo")).to_have_count(0, timeout=60_000)
        expect(panel).not_to_have_attribute("data-busy", "", timeout=60_000)
    assert version(url) == "1"
    expect(page.locator(".outdated")).to_have_count(0)
    assert set(statuses) == {200}
