"""The pages of the demos in a real browser: digits drawn, texts translated, photos described."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Error, Locator, Page, expect
from support import drawn_digits
from support.pages import SLOWLY, Visit, answered, choose, photo, saved_rows, wait_until

from gourmet.systems.food11.contract import SAMPLES

CUPCAKES, SOUP = (next(SAMPLES.glob(f"*_{name}.jpg")).read_bytes() for name in ("cupcakes", "green-soup"))
LONG = " ".join(["Мой старый друг и его младшая сестра и их добрая тётя пришли сегодня домой."] * 20)
SCRIBBLE = [
    [(0.2, 0.3), (0.8, 0.4), (0.3, 0.5), (0.75, 0.2), (0.25, 0.75), (0.7, 0.7), (0.4, 0.25), (0.8, 0.8)]
]
CLIPBOARD = ["clipboard-read", "clipboard-write"]
COUNT_CHANGES = """() => {
  window.changes = 0;
  const count = (changes) => { window.changes += changes.length; };
  new MutationObserver(count).observe(document.getElementById("translation"), { childList: true });
}"""
# Every text that a caption's field gets, in `window.seen`.
WATCH = """() => {
  window.seen = [];
  const { get, set } = Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value");
  const watch = { get, set(text) { window.seen.push(text); set.call(this, text); } };
  Object.defineProperty(HTMLTextAreaElement.prototype, "value", watch);
}"""


def open_demo(page: Page, name: str) -> None:
    page.click("nav summary")
    page.click(f"nav >> text={name}")
    page.wait_for_load_state()


# Digits


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


def test_a_digit_is_read_while_it_is_drawn(open_page: Visit) -> None:
    page = open_page()
    open_demo(page, "Digits")
    label = page.locator("#label")
    expect(label).to_have_text("Nothing drawn yet")
    methods: list[str] = []
    page.on("request", lambda request: methods.append(request.method))
    began = time.monotonic()
    draw(page, drawn_digits.STROKES[4])
    expect(label).to_have_text("4")
    drawn_s = time.monotonic() - began
    expect(page.locator("#facts")).to_contain_text("digits version 1")
    expect(page.locator("#facts")).to_contain_text("ms round trip")
    expect(page.locator(".ten li")).to_have_count(10)
    expect(page.locator(".ten li.best .name")).to_have_text("4")
    expect(page.locator("#spoken")).to_contain_text("4, ")
    # Nearly forty movements of the mouse are not as many requests.
    assert 1 <= methods.count("POST") <= 2 + drawn_s / 0.15
    page.click("#wipe")
    expect(label).to_have_text("Nothing drawn yet")
    draw(page, SCRIBBLE)
    expect(label).to_have_text("Not a digit")
    expect(page.locator("#doubt")).to_contain_text("is the closest")
    page.get_by_role("button", name="Ready-made 7").focus()
    page.keyboard.press("Enter")
    expect(label).to_have_text("7")


def test_an_answer_to_another_drawing_is_dimmed_and_two_digits_are_refused(open_page: Visit) -> None:
    page = open_page("/digits")
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
        with contextlib.suppress(Error):  # the page cancelled it
            route.continue_()
    expect(page.locator("#problem")).to_contain_text("One digit, please")
    expect(page.locator("#label")).to_have_text("Not read")
    # A picture is sent as it is, dark ink on paper; the next stroke starts with an empty board.
    page.set_input_files("#file", photo(drawn_digits.png(5, ink=20, paper=240)))
    expect(page.locator("#label")).to_have_text("5")
    draw(page, drawn_digits.STROKES[7])
    expect(page.locator("#label")).to_have_text("7")
    # The answer to a drawing that was replaced is never shown.
    page.route("**/api/v1/digits", lambda route: held.append(route) if not held else route.continue_())
    held.clear()
    page.get_by_role("button", name="Ready-made 8").click()
    wait_until(page, lambda: held)
    page.get_by_role("button", name="Ready-made 3").click()
    expect(page.locator("#label")).to_have_text("3")
    assert held[0].request.failure is not None


# Translating


def test_words_appear_as_they_are_generated_and_can_be_copied(open_page: Visit) -> None:
    page = open_page("/", permissions=CLIPBOARD)
    open_demo(page, "Translate")
    page.evaluate(COUNT_CHANGES)
    page.fill("#text", LONG)
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


def test_a_stopped_translation_keeps_its_text(open_page: Visit) -> None:
    page = open_page("/translate")
    page.evaluate(SLOWLY, 60_000)
    page.fill("#text", LONG)
    for stop in (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape")):
        page.locator("#text").press("Control+Enter")
        expect(page.locator("#translation")).not_to_be_empty()
        stop()
        expect(page.locator("#facts")).to_have_text("Stopped.")
        kept = page.locator("#translation").text_content()
        page.wait_for_timeout(200)
        assert page.locator("#translation").text_content() == kept
    expect(page.locator("#copy")).to_be_enabled()


def test_examples_are_translated_and_kept_in_this_tab(open_page: Visit) -> None:
    page = open_page("/translate")
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


def test_text_that_is_not_russian_is_marked_before_and_after_translation(open_page: Visit) -> None:
    page = open_page("/translate")
    language, doubt = page.locator("#language"), page.locator("#doubt")
    page.fill("#text", "Hello, how are you?")
    expect(language).to_contain_text("does not look Russian")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("button", name="Translate anyway?")).to_be_focused()
    expect(page.locator("#earlier li")).to_have_count(0)
    page.click("#go")
    expect(doubt).to_contain_text("does not look Russian")
    page.fill("#text", "Він любить каву і чай.")
    expect(language).to_contain_text("Russian does not have the letters і")
    page.fill("#text", "Привет 😀 всем")
    expect(language).to_be_hidden()
    page.click("#go")
    expect(doubt).to_contain_text("not in the translation as written: 😀")
    page.locator("#earlier button").last.click()
    expect(doubt).to_contain_text("does not look Russian")
    # A text that is too long is kept, and not sent.
    page.fill("#text", "я" * 2001)
    expect(page.locator("#length")).to_have_text(re.compile("^2,001 of 2,000 characters: shorten"))
    expect(page.locator("#go")).to_be_disabled()
    assert len(page.input_value("#text")) == 2001
    page.fill("#text", "я" * 2000)
    expect(page.locator("#length")).to_have_text("2,000 of 2,000 characters")
    expect(page.locator("#go")).to_be_enabled()


def test_rough_guesses_are_underlined_and_named(open_page: Visit) -> None:
    page = open_page("/translate")
    marked, doubt = page.locator("#translation mark"), page.locator("#doubt")

    def translate(text: str) -> None:
        page.fill("#text", text)
        page.click("#go")

    translate("Я люблю чай.")
    expect(page.locator("#earlier li")).to_have_count(1)
    expect(doubt).to_be_hidden()
    expect(marked).to_have_count(0)
    translate("Я вижу синхрофазотрон. Мы купили синхрофазотрон.")
    expect(doubt).to_have_text(re.compile("^Rough guess: .*sure of no sentence"))
    expect(marked).to_have_count(0)
    translate("Я люблю чай. Мы купили синхрофазотрон.")
    expect(doubt).to_have_text(re.compile("^Rough guess: .* underlined"))
    expect(marked).to_have_count(1)
    text, rough = page.locator("#translation").text_content() or "", marked.text_content() or ""
    assert text.endswith(rough)
    assert len(rough) < len(text)
    page.locator("#earlier button").last.click()
    expect(marked).to_have_count(0)
    page.locator("#earlier button").first.click()
    expect(marked).to_have_text(rough)
    expect(doubt).to_be_visible()


# Describing photos


def copied(page: Page, card: Locator, how: str) -> str:
    if how == "text":
        card.locator("[data-do=text]").click()
    else:
        choose(card, how)
    expect(page.locator("#spoken")).to_have_text("Copied")
    page.evaluate("document.getElementById('spoken').textContent = ''")
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_a_caption_grows_word_by_word_and_is_edited_before_it_is_copied(open_page: Visit) -> None:
    page = open_page("/", permissions=CLIPBOARD)
    open_demo(page, "Caption")
    expect(page.locator(".lede")).to_contain_text("Flickr8k")
    page.evaluate(WATCH)
    for _ in range(20):  # words that come together are one piece
        page.evaluate("window.seen = []")
        page.set_input_files("#file", photo(SOUP, "my (best) soup.jpg"))
        card = answered(page)
        text = card.locator("textarea")
        whole = text.input_value()
        seen = page.evaluate("window.seen")
        if len(set(seen)) > 1:
            break
        page.click("#clear")
    assert len(set(seen)) > 1
    assert all(whole.startswith(prefix) for prefix in seen)
    expect(page.locator("#spoken")).to_have_text(f"my (best) soup.jpg: {whole}")
    expect(card.locator(".facts")).to_contain_text("captioner_stream version 1")
    expect(card.locator(".facts")).to_contain_text("first word after")
    card.locator(".time summary").click()
    phases = card.locator(".waterfall .name").all_inner_texts()
    assert [phase for phase in phases if phase != "Queue in the app"] == [
        *("Upload", "Receive", "Decode", "To the first word", "All further words", "Response")
    ]
    note = card.locator(".note").first
    expect(note).to_contain_text("Written by a model")
    assert copied(page, card, "text") == whole
    text.fill('A "green" soup <hot> & [fresh]')
    expect(note).to_have_text("Edited by you.")
    assert copied(page, card, "alt") == 'alt="A &quot;green&quot; soup &lt;hot> &amp; [fresh]"'
    assert copied(page, card, "markdown") == (
        r'![A "green" soup <hot> & \[fresh\]](my%20%28best%29%20soup.jpg)'
    )
    text.fill(whole)
    expect(note).to_contain_text("Written by a model")
    # Other wordings are offered, and a low score is shown until the reader writes his own.
    expect(card.locator(".doubt")).to_contain_text("Not sure")
    choose(card, "others")
    wordings = card.locator(".wordings li")
    expect(wordings).to_have_count(4)
    offered = wordings.all_inner_texts()
    assert len(set(offered)) == 4
    assert offered[0] == text.input_value()
    wordings.nth(2).locator("button").click()
    expect(text).to_have_value(offered[2])
    expect(note).to_contain_text("Written by a model")
    text.fill("Soup.")
    expect(card.locator(".doubt")).to_be_hidden()


def test_a_folder_becomes_a_table_and_captions_outlive_a_reload(open_page: Visit, tmp_path: Path) -> None:
    folder = tmp_path / "trip"
    folder.mkdir()
    for name, data in {"=1.jpg": SOUP, "cakes.jpg": CUPCAKES, "notes.txt": b"no photo"}.items():
        (folder / name).write_bytes(data)
    page = open_page("/caption")
    page.set_input_files("#folder", folder)
    expect(page.locator(".card")).to_have_count(2)
    answered(page, 2)
    edited = page.locator(".card", has_text="cakes.jpg").locator("textarea")
    edited.fill("Six cakes, all of them white")
    edited.blur()
    wait_until(page, lambda: "all of them white" in page.evaluate("JSON.stringify(sessionStorage)"))
    for _ in range(2):
        rows = saved_rows(page, "#cards-csv")
        assert rows.keys() == {"trip/=1.jpg", "trip/cakes.jpg"}
        assert rows["trip/cakes.jpg"]["text"] == "Six cakes, all of them white"
        assert [rows[f"trip/{name}"]["written_by"] for name in ("cakes.jpg", "=1.jpg")] == ["person", "model"]
        assert (rows["trip/=1.jpg"]["model"], rows["trip/=1.jpg"]["sure"]) == ("captioner_stream", "false")
        assert float(rows["trip/=1.jpg"]["score"]) < 0
        page.reload()
        answered(page, 2)
    page.click("#clear")
    expect(page.locator("#cards-csv")).to_be_hidden()


def test_a_bad_photo_fails_alone_and_a_growing_caption_can_be_cancelled(open_page: Visit) -> None:
    page = open_page("/caption")
    page.evaluate(SLOWLY, 60_000)
    page.set_input_files("#file", [photo(b"no photo", "notes.jpg"), photo(SOUP, "soup.jpg")])
    expect(page.locator(".card[data-state=failed]")).to_contain_text("Not a photo")
    growing = page.locator(".card", has_text="soup.jpg")
    expect(growing.locator("textarea")).not_to_have_value("")
    growing.get_by_role("button", name="Cancel").click()
    expect(growing).to_contain_text("This photo was not described")
    page.evaluate("window.pauseMs = 0")
    growing.get_by_role("button", name="Try again").click()
    answered(page)
