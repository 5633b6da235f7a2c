"""What every page does: without JavaScript, for axe, on a phone, and when a request fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from playwright.sync_api import Page, Route, expect
from support import drawn_digits
from support.pages import (
    SLOWLY,
    VIEWS,
    Visit,
    answered,
    choose,
    choose_model,
    fits,
    fulfil,
    photo,
    violations,
)

from gourmet.systems.food11.contract import SAMPLES

SOUP: Final = (SAMPLES / "09_green-soup.jpg").read_bytes()
NO_PHOTO: Final = photo(b"no photo at all", "a.txt")
DIGIT: Final = photo(drawn_digits.png(5, ink=20, paper=240))
ONE_COLOUR: Final = photo(drawn_digits.png(5, ink=0))


def click_sample(page: Page) -> None:
    page.locator(".sample", has_text="Green soup").click()


def click_digit(page: Page) -> None:
    page.get_by_role("button", name="Ready-made 4").click()


def send_text(page: Page) -> None:
    page.fill("#text", "Я люблю чай.")
    page.click("#go")


def send_photo(page: Page) -> None:
    page.set_input_files("#file", photo(SOUP, "soup.jpg"))


@dataclass(frozen=True)
class Case:
    """A page, how a reader asks there, and where the answer appears."""

    path: str
    ask: Callable[[Page], None]
    route: str  # the request that asks
    answer: str
    trouble: str = ".card[data-state=held] :text('sent again automatically')"
    again: bool = False  # the reader asks again after an error; other pages do so themselves


PROBLEM: Final = "#problem:has-text('no Triton answers')"
CASES: Final = [
    Case("/", click_sample, "**/api/v1/classify?*", ".card[data-state=answered]"),
    Case("/compare", click_sample, "**/compare?*", ".card[data-state=answered] .panel >> nth=2"),
    Case("/digits", click_digit, "**/api/v1/digits", "#label:text-is('4')", PROBLEM),
    Case("/translate", send_text, "**/api/v1/translate", "#earlier li", PROBLEM, again=True),
    Case("/caption", send_photo, "**/api/v1/caption", ".card[data-state=answered]"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_an_error_of_triton_is_shown_and_the_next_answer_replaces_it(open_page: Visit, case: Case) -> None:
    page = open_page(case.path, forgiven=("status of 503",))
    away = {"state": "away", "message": "no Triton answers"}
    page.route("**/api/v1/health*", lambda route: route.fulfill(json=away))
    page.route(case.route, lambda route: fulfil(route, 503, "triton_unavailable", "no Triton answers"))
    case.ask(page)
    expect(page.locator(case.trouble)).to_be_visible()
    page.unroute_all(behavior="wait")
    if case.again:
        page.click("#go")
    expect(page.locator(case.answer)).to_be_visible()
    expect(page.locator(case.trouble)).to_be_hidden()


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.path)  # streams are not repeated
def test_a_request_whose_connection_was_reset_is_sent_again_once(open_page: Visit, case: Case) -> None:
    page = open_page(case.path, forgiven=("ERR_CONNECTION_RESET",))
    urls: list[str] = []

    def reset_first(route: Route) -> None:
        urls.append(route.request.url)
        if len(urls) == 1:
            route.abort("connectionreset")
        else:
            route.continue_()

    # The page itself, and not the status above it, recovers: nobody sees that something was wrong.
    trouble = "[data-state=held], .problem:not([hidden])"
    page.evaluate(
        "trouble => new MutationObserver(() => { window.troubled ||= !!document.querySelector(trouble) })"
        ".observe(document.body, { subtree: true, attributes: true })",
        trouble,
    )
    page.route(case.route, reset_first)
    case.ask(page)
    expect(page.locator(case.answer)).to_be_visible()
    assert len(urls) == 2
    assert not page.evaluate("window.troubled ?? false")


@dataclass(frozen=True)
class Form:
    """A page without JavaScript: a right input, its answer, the way back, a wrong input and the refusal."""

    path: str
    hidden: str  # what needs a script
    right: Any
    answer: str
    words: str
    back: str
    wrong: Any
    refusal: str


FORMS: Final = [
    Form(
        *("/", "#point", photo(SOUP), ".answer", "food_classifier_onnx"),
        *("Classify another photo", NO_PHOTO, "not a picture"),
    ),
    Form("/compare", "#many", photo(SOUP), ".compared h1", "models", "", NO_PHOTO, "not a picture"),
    Form(
        *("/digits", "#board", DIGIT, ".answer .label", "5"),
        *("Try another digit", ONE_COLOUR, "of one colour"),
    ),
    Form(
        *("/caption", "#folder", photo(SOUP), ".caption", "Written by a model"),
        *("Describe another photo", NO_PHOTO, "not a picture"),
    ),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.path)
def test_without_javascript_a_form_is_answered_and_a_wrong_picture_refused(
    open_page: Visit, form: Form
) -> None:
    page = open_page(form.path, java_script_enabled=False)
    expect(page.locator(form.hidden)).to_be_hidden()
    page.set_input_files("#file", form.right)
    if form.path == "/":
        choose_model(page, "food_classifier_onnx")
    page.click("form button >> visible=true")
    expect(page.locator(form.answer)).to_contain_text(form.words)
    if form.back:
        page.click(f"text={form.back}")
    else:
        page.go_back()
    page.set_input_files("#file", form.wrong)
    page.click("form button >> visible=true")
    expect(page.locator(".problem")).to_contain_text(form.refusal)


def test_without_javascript_a_form_translates_and_the_lab_shows_its_table(
    open_page: Visit, python_web: Any
) -> None:
    page = open_page("/translate", java_script_enabled=False)
    expect(page.locator("#copy")).to_be_hidden()
    send_text(page)
    expect(page.locator("#translation")).not_to_be_empty()
    expect(page.locator("#text")).to_have_value("Я люблю чай.")
    page.fill("#text", "Hello, how are you?")
    page.click("#go")
    expect(page.locator("#language")).to_contain_text("does not look Russian")
    expect(page.locator("#translation")).to_be_empty()
    page.get_by_role("button", name="Translate anyway?").click()
    expect(page.locator("#translation")).not_to_be_empty()
    page.goto(f"{python_web.url}/lab")
    expect(page.locator("nav [aria-current]")).to_have_text("Lab")
    row = page.locator("#totals tr", has_text="food_classifier_int8")
    expect(row.locator("td")).to_have_count(page.locator("thead th").count() - 1)
    assert row.locator("td").first.inner_text().isdigit()
    expect(page.locator("#pause")).to_be_hidden()
    expect(page.get_by_text("Reload the page")).to_be_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_problem_on_any_page_in_any_state(
    visit: Visit, python_web: Any, view: dict[str, Any]
) -> None:
    page = visit("about:blank", reduced_motion="reduce", **view)
    problems: list[str] = []

    def look() -> None:
        problems.extend(violations(page))
        assert fits(page), page.url

    for case in CASES:
        page.goto(python_web.url + case.path)
        if case.path == "/":
            expect(page.locator(".sample img").last).to_have_js_property("naturalWidth", 448)
            look()  # before there is an answer; other pages have the same parts
        case.ask(page)
        expect(page.locator(case.answer)).to_be_visible()
        if case.path == "/":  # a refused photo, the times, a comparison and the history as well
            page.set_input_files("#file", NO_PHOTO)
            expect(page.locator(".card[data-state=failed]")).to_have_count(1)
            page.locator(".time summary").first.click()
            choose(answered(page).first, "compare")
            expect(page.locator(".panel")).to_have_count(3)
            page.click("#history summary")
        if case.path == "/caption":
            choose(answered(page), "others")
            expect(page.locator(".wordings li")).to_have_count(4)
        look()
    # An answer that is under way, and a Triton that is not ready.
    page.goto(python_web.url)
    page.route("**/api/v1/classify?*", lambda route: None)
    loading = {"state": "loading", "message": "not yet"}
    page.route("**/api/v1/health", lambda route: route.fulfill(json=loading))
    page.set_input_files("#file", photo(SOUP, "b.jpg"))
    expect(page.locator(".card[data-state=busy]")).to_have_count(1)
    page.evaluate("dispatchEvent(new Event('online'))")
    look()
    page.unroute_all(behavior="ignoreErrors")
    page.goto(f"{python_web.url}/caption")
    page.evaluate(SLOWLY, 60_000)
    send_photo(page)
    expect(page.locator("textarea[aria-busy]")).not_to_have_value("")
    look()
    # Swagger UI's part of /api/docs is its own: see test_api_docs.
    for path in ("/lab", "/test", "/nothing", "/model-card/translator"):
        page.goto(python_web.url + path)
        look()
    assert problems == []
