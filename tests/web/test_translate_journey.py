"""A text translated in a real browser by a real Triton: word by word, stopped, copied, found again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.pages import VIEWS, fits, violations

LONG = " ".join(["Мой старый друг и его младшая сестра и их добрая тётя пришли сегодня домой."] * 20)
COUNT_CHANGES = """() => {
  window.changes = 0;
  const seen = () => { window.changes += 1; };
  new MutationObserver(seen).observe(document.getElementById("translation"), { childList: true });
}"""


def slow_down(page: Page) -> None:
    """A whole text takes the network some 30 ms: its answer comes over a line of two kilobytes a second."""
    line = {"offline": False, "latency": 0, "downloadThroughput": 2000, "uploadThroughput": -1}
    page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", line)


def test_words_appear_as_they_are_generated_and_can_be_copied(
    visit: Callable[..., Page], python_web: Any
) -> None:
    page = visit(python_web.url, permissions=["clipboard-read", "clipboard-write"])
    page.click("nav summary")
    page.click("nav >> text=Translate")
    page.evaluate(COUNT_CHANGES)
    page.fill("#text", "Я люблю чай. Он любит кофе. Мы живём в большом городе.")
    page.click("#go")
    expect(page.locator("#facts")).to_contain_text("translator_stream version 1")
    expect(page.locator("#facts")).to_contain_text("words a second")
    expect(page.locator("#stop")).to_be_hidden()
    shown = page.locator("#translation").text_content()
    assert shown
    assert page.evaluate("window.changes") > 1
    expect(page.locator("#spoken")).to_have_text(shown)
    page.click("#copy")
    expect(page.locator("#spoken")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == shown


def test_a_stopped_translation_keeps_its_text(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/translate")
    slow_down(page)
    page.fill("#text", LONG)
    page.click("#go")
    expect(page.locator("#translation")).not_to_be_empty()
    page.click("#stop")
    expect(page.locator("#facts")).to_have_text("Stopped.")
    kept = page.locator("#translation").text_content()
    page.wait_for_timeout(200)
    assert page.locator("#translation").text_content() == kept
    expect(page.locator("#copy")).to_be_enabled()


def test_examples_are_translated_and_kept_in_this_tab(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/translate")
    examples = page.locator("#examples button")
    russian = examples.first.locator("span").text_content() or ""
    answers = []
    for index in (0, 1):
        examples.nth(index).click()
        expect(page.locator("#earlier li")).to_have_count(index + 1)
        answers.append(page.locator("#translation").text_content())
    page.reload()
    page.locator("#earlier button").last.click()
    expect(page.locator("#text")).to_have_value(russian)
    expect(page.locator("#translation")).to_have_text(answers[0] or "")
    page.click("#forget")
    expect(page.locator("#history")).to_be_hidden()


@pytest.mark.parametrize("view", VIEWS)
def test_the_keyboard_is_enough_and_axe_finds_no_problem(
    visit: Callable[..., Page], python_web: Any, view: dict[str, Any]
) -> None:
    page = visit(f"{python_web.url}/translate", reduced_motion="reduce", **view)
    assert violations(page) == []
    page.locator("#text").focus()
    page.keyboard.insert_text("Где находится библиотека?")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#earlier li")).to_have_count(1)
    assert violations(page) == []
    assert fits(page)
    slow_down(page)
    page.fill("#text", LONG)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#facts")).to_have_text("Stopped.")


def test_text_that_is_not_russian_is_marked_before_and_after_translation(
    visit: Callable[..., Page], python_web: Any
) -> None:
    page = visit(f"{python_web.url}/translate")
    language, doubt = page.locator("#language"), page.locator("#doubt")
    page.fill("#text", "Hello, how are you?")
    expect(language).to_contain_text("does not look Russian")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("button", name="Translate anyway?")).to_be_focused()
    expect(page.locator("#earlier li")).to_have_count(0)
    page.click("#go")
    expect(doubt).to_contain_text("does not look Russian")
    assert violations(page) == []
    page.fill("#text", "Він любить каву і чай.")
    expect(language).to_contain_text("Russian does not have the letters і")
    page.fill("#text", "Привет 😀 всем")
    expect(language).to_be_hidden()
    page.click("#go")
    expect(doubt).to_contain_text("not in the translation as written: 😀")
    page.locator("#earlier button").last.click()
    expect(doubt).to_contain_text("does not look Russian")


@pytest.mark.parametrize("view", VIEWS)
def test_rough_guesses_are_underlined_and_named(
    visit: Callable[..., Page], python_web: Any, view: dict[str, Any]
) -> None:
    page = visit(f"{python_web.url}/translate", reduced_motion="reduce", **view)
    marked, doubt = page.locator("#translation mark"), page.locator("#doubt")
    page.fill("#text", "Я люблю чай.")
    page.click("#go")
    expect(page.locator("#earlier li")).to_have_count(1)
    expect(doubt).to_be_hidden()
    expect(marked).to_have_count(0)
    page.fill("#text", "Я люблю чай. Мы купили синхрофазотрон.")
    page.click("#go")
    expect(doubt).to_have_text(re.compile("^Rough guess: .* underlined"))
    expect(marked).to_have_count(1)
    page.fill("#text", "Я вижу синхрофазотрон. Мы купили синхрофазотрон.")
    page.click("#go")
    expect(doubt).to_have_text(re.compile("^Rough guess: .*sure of no sentence"))
    expect(marked).to_have_count(0)
    page.fill("#text", "Я люблю чай. Мы купили синхрофазотрон.")
    page.click("#go")
    expect(marked).to_have_count(1)
    text, rough = page.locator("#translation").text_content() or "", marked.text_content() or ""
    assert text.endswith(rough)
    assert len(rough) < len(text)
    assert violations(page) == []
    assert fits(page)
    page.locator("#earlier button").last.click()
    expect(marked).to_have_count(0)
    page.locator("#earlier button").first.click()
    expect(marked).to_have_text(rough)
    expect(doubt).to_be_visible()


def test_a_refused_text_shows_the_reason(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/translate", forgiven=("status of 503",))
    away = {"error": {"code": "triton_unavailable", "message": "no Triton answers", "request_id": "x"}}
    page.route("**/api/v1/translate", lambda route: route.fulfill(status=503, json=away))
    page.fill("#text", "Да.")
    page.click("#go")
    expect(page.locator("#problem")).to_contain_text("no Triton answers")
    page.unroute("**/api/v1/translate")
    page.click("#go")
    expect(page.locator("#earlier li")).to_have_count(1)
    expect(page.locator("#problem")).to_be_hidden()


def test_a_text_that_is_too_long_is_kept_and_not_sent(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/translate")
    page.fill("#text", "я" * 2001)
    expect(page.locator("#length")).to_have_text(re.compile("^2,001 of 2,000 characters: shorten"))
    expect(page.locator("#go")).to_be_disabled()
    assert len(page.input_value("#text")) == 2001
    page.fill("#text", "я" * 2000)
    expect(page.locator("#length")).to_have_text("2,000 of 2,000 characters")
    expect(page.locator("#go")).to_be_enabled()


def test_without_javascript_a_form_translates(visit: Callable[..., Page], python_web: Any) -> None:
    page = visit(f"{python_web.url}/translate", java_script_enabled=False)
    expect(page.locator("#copy")).to_be_hidden()
    page.fill("#text", "Я люблю чай.")
    page.click("#go")
    expect(page.locator("#translation")).not_to_be_empty()
    expect(page.locator("#text")).to_have_value("Я люблю чай.")
    page.fill("#text", "Hello, how are you?")
    page.click("#go")
    expect(page.locator("#language")).to_contain_text("does not look Russian")
    expect(page.locator("#translation")).to_be_empty()
    page.get_by_role("button", name="Translate anyway?").click()
    expect(page.locator("#translation")).not_to_be_empty()
