"""Take the README's screenshots again, of a product that is running: take_screenshots.py [address].

Needs requirements-dev.txt and Chromium; the photos are those that the page offers.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
COLOURS = 256  # a page is mostly flat: a palette makes the file a third as large
WAIT_MS = 60_000


def food(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator(".sample img").last).to_have_js_property("naturalWidth", 448)
    for dish in ("Cupcakes", "Green soup"):
        page.locator(".sample", has_text=dish).click()
        expect(page.locator(".card[data-state=answered]").first).to_contain_text(
            dish.lower().replace(" ", "-"), timeout=WAIT_MS
        )
    page.locator(".time summary").first.click()


def compare(page: Page, url: str) -> None:
    page.goto(f"{url}/compare")
    page.locator(".sample", has_text="Green soup").click()
    expect(page.locator(".card[data-state=answered] .verdict")).to_be_visible(timeout=WAIT_MS)


def translate(page: Page, url: str) -> None:
    page.goto(f"{url}/translate")
    for place in (1, 4):
        page.locator("#examples button").nth(place).click()
        expect(page.locator("#facts")).to_contain_text("words a second", timeout=WAIT_MS)


def take(browser: Browser, url: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    scenes = ((food, False, (1280, 1000)), (compare, True, (1280, 900)), (translate, False, (1280, 900)))
    for scene, dark, size in scenes:
        page = browser.new_page(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        scene(page, url)
        page.evaluate("window.scrollTo(0, 0)")
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)
        path = FOLDER / f"{scene.__name__}.png"
        page.screenshot(path=path)
        shot = Image.open(path).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, kmeans=2)
        shot.save(path, optimize=True)
        page.close()


def main(url: str = "http://127.0.0.1:5000") -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        take(browser, url.rstrip("/"))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
