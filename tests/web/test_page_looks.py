"""What holds for every page and state: light first paint, no findings of axe-core, light and dark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.pages import VIEWS, photo, violations

from gourmet.systems.food11.contract import SAMPLES

FIRST_PAINT_BYTES = 100_000
ALL_SAMPLES_BYTES = 400_000


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_on_any_page_in_any_state(
    visit: Callable[..., Page], python_web: Any, sample: bytes, view: dict[str, Any]
) -> None:
    page = visit(python_web.url, reduced_motion="reduce", **view)
    expect(page.locator(".sample img").last).to_have_js_property("naturalWidth", 448)
    found = violations(page)
    # Sure, not sure and refused; with the time told, the models compared and the history open.
    page.locator(".sample", has_text="Green soup").click()
    page.locator(".sample", has_text="Spaghetti").click()
    page.set_input_files("#file", photo(b"no photo"))
    expect(page.locator(".card[data-state=answered]")).to_have_count(2)
    expect(page.locator(".card[data-state=failed]")).to_have_count(1)
    page.locator(".time summary").first.click()
    page.locator("[data-do=compare]").first.click()
    expect(page.locator(".panel")).to_have_count(3)
    page.click("#history summary")
    found += violations(page)
    # Under way, and in trouble.
    page.route("**/api/v1/classify?*", lambda route: None)
    page.route(
        "**/api/v1/health", lambda route: route.fulfill(json={"state": "loading", "message": "not yet"})
    )
    page.set_input_files("#file", photo(sample, "b.jpg"))
    expect(page.locator(".card[data-state=busy]")).to_have_count(1)
    page.evaluate("dispatchEvent(new Event('online'))")
    found += violations(page)
    page.unroute_all(behavior="ignoreErrors")
    for path in ("/compare", "/test", "/nothing", "/api/docs"):
        page.goto(python_web.url + path)
        found += violations(page)
    assert found == []


def test_the_first_paint_is_light_and_its_colours_follow_the_reader(
    visit: Callable[..., Page], python_web: Any
) -> None:
    page = visit("about:blank", color_scheme="dark")
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    addresses: dict[str, str] = {}
    sizes: dict[str, float] = {}
    session.on("Network.responseReceived", lambda e: addresses.update({e["requestId"]: e["response"]["url"]}))
    session.on("Network.loadingFinished", lambda e: sizes.update({e["requestId"]: e["encodedDataLength"]}))
    page.goto(python_web.url)
    expect(page.locator(".sample img").last).to_have_js_property("naturalWidth", 448)
    drawn = len(list(SAMPLES.glob("*.jpg")))
    deadline = time.monotonic() + 60  # what is on the page may not have been reported yet
    while sum("/samples/" in addresses.get(request, "") for request in sizes) < drawn:
        assert time.monotonic() < deadline, addresses
        page.wait_for_timeout(50)
    transferred = {addresses[request]: size for request, size in sizes.items() if request in addresses}
    pictures = {url: size for url, size in transferred.items() if "/samples/" in url}
    page_itself = sum(transferred.values()) - sum(pictures.values())
    assert any("/js/photo-page.js" in url for url in transferred)
    assert page_itself < FIRST_PAINT_BYTES, json.dumps(transferred, indent=1)
    assert sum(path.stat().st_size for path in SAMPLES.glob("*.jpg")) < ALL_SAMPLES_BYTES
    # Photos to try are asked for only when the page itself is there.
    last_script = max(i for i, url in enumerate(transferred) if "/js/" in url or url.endswith("/"))
    assert min(i for i, url in enumerate(transferred) if "/samples/" in url) > last_script
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
