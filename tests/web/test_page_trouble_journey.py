"""What the page does while Triton starts, goes away and comes back: it says so, waits and recovers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.pages import photo

from gourmet.serving.triton_server import TritonServer

MODEL = "food_classifier_onnx"


@pytest.mark.slow
def test_photos_given_while_triton_starts_or_is_restarted_are_answered_when_it_is_there(
    visit: Callable[..., Page], start: Callable[..., Any], sleeping_triton: TritonServer, sample: bytes
) -> None:
    web = start(sleeping_triton.options.http_url, FOOD11_MODEL_NAME=MODEL)
    page = visit(web.url, forgiven=("status of 503", "status of 502"))
    eggs = photo(sample)
    status = page.locator("#status")
    expect(status).to_contain_text("The classifier is starting")
    page.set_input_files("#file", eggs)
    expect(page.locator(".card[data-state=held]")).to_contain_text("sent again automatically")

    sleeping_triton.start()
    sleeping_triton.wait_until_live(120)
    expect(page.locator(".card[data-state=answered]")).to_have_count(1)
    expect(status).to_contain_text("is back")

    sleeping_triton.stop()
    page.set_input_files("#file", eggs)
    expect(page.locator(".card[data-state=held]")).to_have_count(1)
    expect(status).to_contain_text("The classifier is unavailable")
    sleeping_triton.start()
    sleeping_triton.wait_until_live(120)
    expect(page.locator(".card[data-state=answered]")).to_have_count(2)
    # Whatever was wrong is over, and the page asks no more.
    expect(status).to_be_empty()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert asked == []
