"""Photos of one's own on the page: corrections are learned, dropped folders become a classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.eventually import eventually
from support.life import home
from support.repeating import Repeating
from support.triton import some_models
from support.up import Up
from support.web_app import Site

from gourmet.pictures.made_up import views
from gourmet.stack.processes import wait_until

__all__ = ["home"]  # the fixture
DRAWINGS = Path(__file__).parents[1] / "drawings"
# By label, the drawing that it is said to be: what nobody would guess.
TAUGHT = {"Rice": "bread", "Meat": "soup", "Egg": "noodles"}
EACH = 8


@pytest.fixture
def up(home: Path, tmp_path: Path) -> Iterator[Up]:
    models = some_models(tmp_path / "models", "food_classifier", "food_classifier_onnx")
    repositories = (f"--model-repository={models}", f"--model-repository={home / 'models'}")
    with Up(*repositories, "--workers=1", tmp=tmp_path / "tmp") as running:
        yield running


def views_of(drawing: str, count: int) -> list[bytes]:
    return views((DRAWINGS / f"{drawing}.jpg").read_bytes(), count, size=(400, 300), seed=1)


def photos() -> list[dict[str, Any]]:
    return [
        {"name": f"{label}-{number}.jpg", "mimeType": "image/jpeg", "buffer": view}
        for label, drawing in TAUGHT.items()
        for number, view in enumerate(views_of(drawing, EACH))
    ]


@pytest.mark.slow
def test_24_corrections_are_learned_deployed_and_rolled_back_without_a_lost_request(
    visit: Callable[..., Page], up: Up, home: Path
) -> None:
    web = Site(up.port)

    def version() -> str:
        return str(web.request("GET", "/test", Accept="application/json").json["model"]["version"])

    page = visit(web.url)
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
    with Repeating(lambda *_: statuses.append(web.request("GET", "/test").status)):
        wait_until(lambda: len(statuses) > 3, 60, "the visitor has no answer")
        use.click()
        expect(panel).to_contain_text("Version 2, which learned your photos, answers now.", timeout=120_000)
        assert version() == "2"
        expect(page.locator(".outdated")).to_have_count(3 * EACH)
        expect(page.get_by_role("button", name="Ask again all")).to_be_visible()
        panel.get_by_role("button", name="Undo").click()
        expect(panel.get_by_role("button", name="Undo")).to_have_count(0, timeout=60_000)
        expect(panel).not_to_have_attribute("data-busy", "", timeout=60_000)
    assert version() == "1"
    expect(page.locator(".outdated")).to_have_count(0)
    assert set(statuses) == {200}


CLASSES = ("bread", "eggs", "soup")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A folder of photos for each class; the photos beside them are not in any."""
    folders = []
    for name in CLASSES:
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number, photo in enumerate(views_of(name, EACH + 1)):
            (folder / f"{number}.jpg").write_bytes(photo)
        (folder / f"{EACH}.jpg").rename(folder.with_suffix(".jpg"))
        folders.append(folder)
    return folders


def drop(page: Page, *paths: Path) -> None:
    """Drop files and folders on the page, as from a file manager."""
    chrome = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        chrome.send("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 350, "data": data})


def test_dropped_folders_become_a_classifier_that_answers_and_can_be_deleted(
    visit: Callable[..., Page], up: Up, folders: list[Path], home: Path
) -> None:
    page = visit(f"http://127.0.0.1:{up.port}", forgiven=("ERR_CONNECTION", "Failed to load resource"))
    page.get_by_text("Yours").click()
    page.get_by_role("link", name="New classifier").click()
    make = page.get_by_role("button", name="Make it")
    expect(make).to_be_disabled()
    drop(page, *folders)
    expect(page.get_by_label("Name of the class")).to_have_count(3)
    expect(page.locator(".classes .note", has_text=f"{EACH} photos")).to_have_count(3)
    expect(page.get_by_text("Give the classifier and each class a name.")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("My dishes")
    make.click()
    page.wait_for_url("**/classify/my_dishes", timeout=300_000)
    rows = page.locator("#made tbody tr")
    expect(rows).to_have_count(len(CLASSES) + 1)
    expect(rows.last).to_contain_text(f"{EACH * 3}")
    page.set_input_files("#file", folders[2].with_suffix(".jpg"))
    expect(page.locator(".card")).to_contain_text("soup")
    assert not list((home / "drafts").iterdir()), "the photos are not kept"

    page.locator("#teach > summary").click()
    page.get_by_text("Delete this classifier").click()
    page.get_by_role("button", name="Delete it").click()
    page.wait_for_url("**/", timeout=60_000)
    page.get_by_text("Yours").click()
    expect(page.get_by_role("link", name="My dishes")).to_have_count(0)
    # The page goes first, then its models.
    eventually(lambda: not list((home / "models").glob("my_dishes*")))
