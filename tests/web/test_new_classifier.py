"""A classifier of one's own on the page: from dropped folders to an answer about another photo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.life import home
from support.triton import some_models
from support.up import Up

from gourmet.pictures.made_up import views

__all__ = ["home"]  # the fixture
DRAWINGS = Path(__file__).parents[1] / "drawings"
CLASSES = ("bread", "eggs", "soup")
EACH = 8


@pytest.fixture
def up(home: Path, tmp_path: Path) -> Iterator[Up]:
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    repositories = (f"--model-repository={models}", f"--model-repository={home / 'models'}")
    running = Up(*repositories, "--workers=1", tmp=tmp_path / "tmp")
    running.wait_for("ready after")
    yield running
    running.stop()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A folder of photos for each class; the photos beside them are not in any."""
    folders = []
    for name in CLASSES:
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        photos = views((DRAWINGS / f"{name}.jpg").read_bytes(), EACH + 1, size=(400, 300), seed=1)
        for number, photo in enumerate(photos):
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
    page.wait_for_url("**/classify/my_dishes", timeout=120_000)
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
    assert not list((home / "models").glob("my_dishes*"))
