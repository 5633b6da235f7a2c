"""Helpers for tests of pages: screens, uploads, slow answers and problems reported by axe-core."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Locator, Page, Route, expect

Visit = Callable[..., Page]
PHONE: Final = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
VIEWS: Final = [
    {"color_scheme": "light"},
    pytest.param({"color_scheme": "dark", **PHONE}, marks=pytest.mark.slow),
]


def photo(data: bytes, name: str = "eggs.jpg") -> dict[str, Any]:
    """A file as it is given to a page's chooser; only its content counts."""
    return {"name": name, "mimeType": "image/jpeg", "buffer": data}


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


def answered(page: Page, cards: int = 1) -> Locator:
    """Wait for this many answered cards, and return them."""
    expect(page.locator(".card[data-state=answered]")).to_have_count(cards)
    return page.locator(".card[data-state=answered]")


def fulfil(route: Route, status: int, code: str, message: str) -> None:
    """Answer in place of the app with this error."""
    route.fulfill(status=status, json={"error": {"code": code, "message": message, "request_id": "x"}})


# The real answer in its parts, with a pause after each: otherwise they come too fast to be watched.
SLOWLY: Final = """(pauseMs) => {
  window.pauseMs = pauseMs;
  const real = window.fetch;
  window.fetch = async (address, options) => {
    const answer = await real(address, options);
    if (!answer.headers.get("Content-Type").startsWith("text/event-stream")) return answer;
    const parts = (await answer.text()).split(/(?<=\\n\\n)/);
    const slow = new ReadableStream({
      async start(to) {
        options.signal?.addEventListener("abort", () => to.error(options.signal.reason));
        for (const part of parts) {
          to.enqueue(new TextEncoder().encode(part));
          await new Promise((next) => setTimeout(next, window.pauseMs));
        }
        to.close();
      },
    });
    return new Response(slow, answer);
  };
}"""


def wait_until(page: Page, condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition holds; the content policy lets `page.wait_for_function` look only once."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold"
        page.wait_for_timeout(20)


def violations(page: Page) -> list[str]:
    problems = Axe().run(page).response["violations"]
    return [f"{page.url}: {f['id']}: {[node['target'] for node in f['nodes']]}" for f in problems]


def fits(page: Page) -> bool:
    """Return True if the page is not wider than the screen."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def saved(page: Page, button: str) -> str:
    """The text of the file that a button saves."""
    with page.expect_download() as saving:
        page.click(button)
    return Path(saving.value.path()).read_text()


def saved_rows(page: Page, button: str, column: str = "file") -> dict[str, dict[str, str]]:
    """The rows of the table that a button saves, by one of its columns."""
    return {row[column]: row for row in csv.DictReader(io.StringIO(saved(page, button), newline=""))}


def choose(card: Locator, action: str) -> None:
    """Choose what is in a card's menu, or below "For engineers"."""
    button = card.locator(f"[data-do={action}]")
    button.locator("xpath=ancestor::details").evaluate("details => { details.open = true; }")
    button.click()


def choose_model(page: Page, name: str) -> None:
    page.locator(".engineers").evaluate("details => { details.open = true; }")
    page.select_option("#model", name)
