"""The lab's figures of a real Triton, through the app's two processes, and its page without a script."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from gourmet.serving.waiting import wait_until

MODEL = "food_classifier_onnx"


def counts(web: Any, model: str) -> dict[str, Any]:
    """What is so now, and not what was half a second ago."""
    began = time.time()
    while True:
        reply = web.request("GET", "/lab/figures", Accept="application/json")
        assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
        if reply.json["at"] >= began:
            return next(each for each in reply.json["models"] if each["name"] == model)
        assert time.time() < began + 60
        time.sleep(0.1)


def test_photos_are_counted_with_their_milliseconds_and_batches(
    python_web: Any, sample: bytes, in_parallel: Callable[..., list[Any]]
) -> None:
    before = counts(python_web, MODEL)

    def classify(_: int) -> int:
        path = f"/api/v1/classify?model={MODEL}"
        return int(python_web.request("POST", path, sample, Content_Type="image/jpeg").status)

    assert set(in_parallel(classify, list(range(6)))) == {200}
    # Figures are remembered for half a second, and a backend counts a request after it answered.
    wait_until(lambda: counts(python_web, MODEL)["requests"] - before["requests"] >= 6, 30, "six requests")
    now = counts(python_web, MODEL)
    assert now["rows"] - before["rows"] >= 6
    assert now["queue_ms"] > before["queue_ms"]
    assert now["compute_ms"] > before["compute_ms"]
    executed = sum(each["rows"] * each["executions"] for each in now["batches"])
    assert executed == now["rows"]
    assert sum(each["executions"] for each in now["batches"]) == now["executions"]


def test_without_a_script_there_is_the_table(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/lab", java_script_enabled=False)
    expect(page.locator("nav [aria-current]")).to_have_text("Lab")
    row = page.locator("#totals tr", has_text="food_classifier_int8")
    assert re.fullmatch(r"\d+", row.locator("td").first.inner_text())
    expect(row.locator("td")).to_have_count(page.locator("thead th").count() - 1)
    expect(page.locator("#pause")).to_be_hidden()
    expect(page.get_by_text("Reload the page")).to_be_visible()
