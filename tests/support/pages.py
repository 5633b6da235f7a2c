"""Helpers for tests of pages: screens, uploads and problems reported by axe-core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page

PHONE: Final = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
VIEWS: Final = [
    {"color_scheme": "light"},
    pytest.param({"color_scheme": "dark", **PHONE}, marks=pytest.mark.slow),
]


def photo(data: bytes, name: str = "eggs.jpg") -> dict[str, Any]:
    """A file as it is given to a page's chooser; only its content counts."""
    return {"name": name, "mimeType": "image/jpeg", "buffer": data}


def wait_until(page: Page, condition: Callable[[], object], seconds: float = 60) -> None:
    """What page.wait_for_function is for, which the pages' content policy lets look once only."""
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


def choose(card: Locator, action: str) -> None:
    """Choose what stands in a card's menu."""
    card.locator(".menu summary").click()
    card.locator(f"[data-do={action}]").click()
