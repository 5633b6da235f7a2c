"""Digits drawn in a real browser, read by a real Triton; sent by a form where there is no script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect
from support import drawn_digits
from support.pages import VIEWS, fits, photo, violations, wait_until


def draw(page: Page, strokes: Sequence[Sequence[tuple[float, float]]]) -> None:
    expect(page.locator("#board")).to_be_visible()  # once the page's script runs
    box = page.locator("#board").bounding_box()
    assert box
    for stroke in strokes:
        points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=2)
        page.mouse.up()


def test_a_digit_is_read_while_it_is_drawn(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(python_web.url)
    page.click("nav summary")
    page.click("nav >> text=Digits")
    expect(page.locator("#label")).to_have_text("Nothing drawn yet")
    methods: list[str] = []
    page.on("request", lambda request: methods.append(request.method))
    draw(page, drawn_digits.STROKES[4])
    expect(page.locator("#label")).to_have_text("4")
    expect(page.locator("#facts")).to_contain_text("digits version 1")
    expect(page.locator("#facts")).to_contain_text("ms round trip")
    expect(page.locator(".ten li")).to_have_count(10)
    expect(page.locator(".ten li.best .name")).to_have_text("4")
    expect(page.locator("#spoken")).to_contain_text("4, ")
    # Nearly forty movements of the mouse were not as many questions, and the last answer was waited for.
    assert 1 <= methods.count("POST") < 20
    page.click("#wipe")
    expect(page.locator("#label")).to_have_text("Nothing drawn yet")
    expect(page.locator("#here")).to_be_visible()
    # A scribble.
    draw(
        page,
        [
            [
                (0.2, 0.3),
                (0.8, 0.4),
                (0.3, 0.5),
                (0.75, 0.2),
                (0.25, 0.75),
                (0.7, 0.7),
                (0.4, 0.25),
                (0.8, 0.8),
            ]
        ],
    )
    expect(page.locator("#label")).to_have_text("Not a digit")
    expect(page.locator("#doubt")).to_contain_text("is the closest")


@pytest.mark.parametrize("view", VIEWS)
def test_the_keyboard_is_enough_and_axe_finds_no_problem(
    visit: Callable[..., Page], python_web: Any, view: dict[str, Any]
) -> None:
    page = visit(f"{python_web.url}/digits", reduced_motion="reduce", **view)
    assert violations(page) == []
    page.get_by_role("button", name="Ready-made 7").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#label")).to_have_text("7")
    assert violations(page) == []
    assert fits(page)


@pytest.mark.parametrize("digit", range(10))
def test_every_sample_digit_is_read_correctly(python_web: Any, digit: int) -> None:
    shown = python_web.request("GET", f"/static/digits/{digit}.png").body
    reply = python_web.request("POST", "/api/v1/digits", shown, Content_Type="image/png")
    (result,) = reply.json["results"]
    assert (result["label"], result["sure"]) == (str(digit), True)


def test_an_answer_to_another_drawing_is_dimmed_and_two_digits_and_a_picture_are_answered(
    visit: Callable[..., Page], python_web: Any
) -> None:
    page = visit(f"{python_web.url}/digits")
    left = [[(0.06 + 0.45 * x, y) for x, y in stroke] for stroke in drawn_digits.STROKES[1]]
    right = [[(0.45 + 0.45 * x, y) for x, y in stroke] for stroke in drawn_digits.STROKES[2]]
    draw(page, left)
    expect(page.locator("#label")).to_have_text("1")
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    held: list[Any] = []
    page.route("**/api/v1/digits", lambda route: held.append(route))
    draw(page, right)
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#answer")).to_have_css("opacity", "0.5")
    page.unroute("**/api/v1/digits")
    for route in held:
        with contextlib.suppress(Error):  # it was called off
            route.continue_()
    expect(page.locator("#problem")).to_contain_text("One digit, please")
    expect(page.locator("#label")).to_have_text("Not read")
    # A picture is sent as it is, dark ink on paper; drawing begins on an empty board again.
    page.set_input_files("#file", photo(drawn_digits.png(5, ink=20, paper=240)))
    expect(page.locator("#label")).to_have_text("5")
    draw(page, drawn_digits.STROKES[7])
    expect(page.locator("#label")).to_have_text("7")


def test_an_answer_to_a_cleared_drawing_is_never_shown(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/digits")
    held: list[Any] = []
    page.route("**/api/v1/digits", lambda route: held.append(route) if not held else route.continue_())
    page.get_by_role("button", name="Ready-made 8").click()
    wait_until(page, lambda: held)
    page.get_by_role("button", name="Ready-made 3").click()
    expect(page.locator("#label")).to_have_text("3")
    assert held[0].request.failure is not None  # called off
    page.wait_for_timeout(200)
    expect(page.locator("#label")).to_have_text("3")


def test_a_drawing_waits_while_triton_is_away(visit: Callable[..., Page], python_web: Any) -> None:
    away = {"error": {"code": "triton_unavailable", "message": "no Triton answers", "request_id": "x"}}
    page = visit(f"{python_web.url}/digits", forgiven=("status of 503",))
    page.route("**/api/v1/digits", lambda route: route.fulfill(status=503, json=away))
    page.get_by_role("button", name="Ready-made 2").click()
    expect(page.locator("#problem")).to_contain_text("no Triton answers")
    page.unroute("**/api/v1/digits")
    expect(page.locator("#label")).to_have_text("2")
    expect(page.locator("#problem")).to_be_hidden()


def test_without_javascript_a_form_sends_a_picture(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/digits", java_script_enabled=False)
    expect(page.locator("#board")).to_be_hidden()
    page.set_input_files("#file", photo(drawn_digits.png(5, ink=20, paper=240)))
    page.click("text=Classify")
    expect(page.locator(".answer .label")).to_have_text("5")
    page.click("text=Try another digit")
    page.set_input_files("#file", photo(drawn_digits.png(5, ink=0)))
    page.click("text=Classify")
    expect(page.locator(".problem")).to_contain_text("of one colour")
