"""The lab: figures that move, what it says while there are none, and a short measurement."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect
from support.eventually import eventually
from support.pages import Visit, wait_until


def look(at: float, times: int, **more: Any) -> dict[str, Any]:
    """A model that was asked ten times as often, each time with four rows in a batch of their own."""
    requests = 10 * times
    model = {
        **{"name": "m", "version": "1", "requests": requests, "failures": 0, "rows": 4 * requests},
        **{"executions": requests, "queue_ms": 3.0 * requests, "compute_ms": 40.0 * requests},
        **{"batches": [{"rows": 4, "executions": requests}], **more},
    }
    other = {**model, "name": "other", "requests": 7, "failures": 0}
    return {"at": at, "models": [model, other], "machine": ["CPU: 7% busy"], "configs": {"m": "2 instances"}}


def tell(page: Page, *looks: dict[str, Any]) -> None:
    """Have the page told of these looks, one after another, and of the last again and again."""
    left = list(looks)
    page.route("**/lab/figures", lambda route: route.fulfill(json=left.pop(0) if left[1:] else left[0]))


def away(message: str) -> dict[str, Any]:
    return {"error": {"code": "triton_unavailable", "message": message, "request_id": "x"}}


def test_figures_cover_the_time_between_two_refreshes(visit: Visit, python_web: Any) -> None:
    page = visit("about:blank")
    tell(page, look(100, 1), look(102, 2, failures=2))
    page.goto(f"{python_web.url}/lab")
    card = page.locator(".model", has_text="m version 1")
    shown = [card.locator(f".{name} dd").first for name in ("rows_per_s", "queue_ms", "compute_ms", "batch")]
    for figure, text in zip(shown, ("20.0", "3.00 ms", "40.0 ms", "4.00"), strict=True):
        expect(figure).to_have_text(text)
    expect(card.locator(".facts")).to_have_text("5.00 requests/s; 10 since this page was opened. Failed: 2.")
    expect(card.locator(".sizes li")).to_have_text(re.compile(r"batch of 4\s*100\s%"))
    # The other one failed nothing and was asked nothing, though its batches moved.
    expect(page.locator("#idle")).to_have_text("No requests since this page was opened: other")
    expect(page.locator("#totals tr").first.locator("td")).to_have_text(
        ["20", "2", "80", "20", "4.00", "3.00", "40.0"]
    )
    # A reloaded model counts from 0, so the statistics that another process read before are of no use.
    tell(page, look(101, 1), look(104, 1), look(104, 1))
    expect(card.locator(".facts")).to_contain_text("; 20 since")
    # After a long silence nobody knows when something happened, and two minutes later it is forgotten.
    tell(page, look(400, 9), look(401, 9))
    expect(page.locator("#quiet")).to_contain_text("No requests in the last two minutes")
    expect(card).to_have_count(0)


def test_each_reason_for_missing_figures_is_announced_once(visit: Visit, python_web: Any) -> None:
    page = visit("about:blank", forgiven=("status of 503",))
    reasons = ["broke off", "broke off", "no Triton answers", "no Triton answers", "broke off"]
    page.route("**/lab/figures", lambda route: route.fulfill(status=503, json=away(reasons[0])))
    page.goto(f"{python_web.url}/lab")
    reason = page.locator("#status small")
    expect(reason).to_have_text(reasons[0])
    page.evaluate(
        "new MutationObserver(() => (window.said ??= []).push(document.querySelector('#status').textContent))"
        ".observe(document.querySelector('#status'), { childList: true })"
    )
    while reasons[1:]:
        del reasons[0]
        with page.expect_response("**/lab/figures"):
            page.evaluate("dispatchEvent(new Event('online'))")
        expect(reason).to_have_text(reasons[0])
    assert page.evaluate("window.said.length") == 2
    page.unroute("**/lab/figures")
    wait_until(page, lambda: "Live figures are back." in page.evaluate("window.said"))


def test_the_page_polls_only_while_it_is_visible(visit: Visit, python_web: Any) -> None:
    page = visit("about:blank")
    page.clock.install()
    page.goto(f"{python_web.url}/lab")
    expect(page.locator("#quiet")).to_contain_text("No requests")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))

    def hide(hidden: str) -> None:
        page.evaluate(
            f"Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )

    stops: list[tuple[Callable[[], None], Callable[[], None]]] = [
        (page.locator("#pause").click, page.get_by_role("button", name="Resume").click),
        (lambda: hide("true"), lambda: hide("false")),
    ]
    for stop, go_on in stops:
        stop()
        page.wait_for_timeout(200)  # for the one that may be under way
        urls.clear()
        page.clock.run_for(10_000)
        assert urls == []
        with page.expect_request("**/lab/figures"):
            go_on()


def counts(web: Any) -> dict[str, Any]:
    """What Triton has counted of the default model, not as a process of the app remembers it."""
    began = time.time()
    now: Any = {"at": 0}
    while now["at"] < began:
        reply = web.request("GET", "/lab/figures", Accept="application/json")
        assert reply.headers["cache-control"] == "no-store"
        now = reply.json if reply.status == 200 else now  # a busy machine may be late with its statistics
    return next(model for model in now["models"] if model["name"] == "food_classifier")


def test_a_short_measurement_is_started_shown_and_ended_and_words_are_explained(
    open_page: Visit, python_web: Any
) -> None:
    page, before = open_page("/lab"), counts(python_web)
    # It would end by itself after ten seconds.
    page.evaluate(
        "() => { const real = setTimeout; window.setTimeout = (f, ms) => real(f, ms === 10_000 ? 1e8 : ms); }"
    )
    shown, go = page.locator("#load-figures"), page.locator("#load-go")
    page.select_option("#load-clients", "2")
    go.click()
    expect(shown).to_contain_text(re.compile(r"s: [1-9]\d* answers, .* median \d+ ms, p95 \d+ ms"))
    expect(go).to_have_text("End")
    expect(page.locator(".model h3", has_text="food_classifier")).to_be_visible()
    go.click()
    expect(go).to_have_text("Start")
    kept = shown.text_content()
    page.wait_for_timeout(200)
    assert shown.text_content() == kept
    answers = int(str(kept).partition(" answers")[0].rpartition(" ")[2])

    def are_counted() -> bool:
        """As a backend counts a request after it has answered, and one that was given up in the end."""
        now = counts(python_web)
        executions = sum(batch["executions"] for batch in now["batches"])
        rows = sum(batch["rows"] * batch["executions"] for batch in now["batches"])
        grown = all(now[figure] > before[figure] for figure in ("queue_ms", "compute_ms"))
        is_whole = (executions, rows) == (now["executions"], now["rows"])
        return is_whole and grown and now["requests"] - before["requests"] >= answers

    eventually(are_counted)
    expect(page.locator("#configs div", has_text="food_classifier_int8")).to_contain_text("batches of up to")
    meaning = page.locator("#term-batch")
    expect(meaning).to_be_hidden()
    page.locator("[aria-describedby=term-batch]").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    expect(meaning).to_be_visible()
    expect(meaning).to_contain_text("1: each row was worked on alone")
    # A refusal ends it and is told.
    busy = {"error": {"code": "too_many_requests", "message": "too much for now", "request_id": "x"}}
    page.route("**/api/v1/classify*", lambda route: route.fulfill(status=429, json=busy))
    go.click()
    expect(page.locator("#load-problem")).to_have_text("too much for now")
    expect(go).to_have_text("Start")
