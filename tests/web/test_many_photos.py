"""Many cards at once, what stays on them, corrections, and the square that the model sees."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, Route, expect
from support.cli import said
from support.pages import (
    PHONE,
    Visit,
    answered,
    choose,
    encoded,
    fits,
    photo,
    saved,
    saved_rows,
    violations,
    wait_until,
)

from gourmet.pictures.certainty import RankedLabels
from gourmet.systems.food11.contract import SAMPLES, SYSTEM


def two_colours(kind: str = "JPEG") -> bytes:
    """Red on the left, blue in the middle and on the right, twice as wide as high."""
    picture = Image.new("RGB", (800, 400), "blue")
    picture.paste("red", (0, 0, 200, 400))
    return encoded(picture, kind)


def answer_by_name(page: Page, answers: dict[str, tuple[str, float, float]]) -> None:
    """Have photos answered by their name: with a label, its probability and that of food; sure from 0.85."""

    def answer(route: Route) -> None:
        reply = route.fetch().json()
        body = route.request.post_data_buffer or b""
        name = next(name for name in answers if f'filename="{name}"'.encode() in body)
        label, probability, food = answers[name]
        reply["results"][0].pop("candidates", None)
        is_food = food > 0.5
        reply["results"][0] |= {
            **{"label": label, "probability": probability, "sure": is_food and probability >= 0.85},
            **{"relevant": is_food, "doubtful": False, "verdict": verdict(label, probability, food)},
        }
        route.fulfill(json=reply)

    page.route("**/api/v1/classify?*", answer)
    page.set_input_files("#file", [photo(two_colours(), name) for name in answers])
    answered(page, len(answers))


def verdict(label: str, probability: float, food: float = 0.99) -> dict[str, Any]:
    """What the server says of such an answer, with a threshold of 0.85."""
    shares = {label: probability, "Egg" if label != "Egg" else "Soup": 0.001}
    shown = RankedLabels(SYSTEM, tuple(shares), tuple(shares.values()), 0.85, food, 0.5).verdict
    return {name: value for name, value in shown._asdict().items() if value is not None}


def sent(route: Route) -> Image.Image:
    body = route.request.post_data_buffer or b""
    match = re.search(rb"Content-Type: image/\w+\r\n\r\n(.*)\r\n--", body, re.DOTALL)
    assert match
    return Image.open(io.BytesIO(match[1])).convert("RGB")


def is_small_square_of(picture: Image.Image, colour: int) -> bool:
    """Whether it is as small as five times "-" make it, with this one of RGB in its middle."""
    middle = picture.getpixel((picture.width // 2, picture.height // 2))
    return picture.width == picture.height < 210 and middle[colour] > 200


def test_the_square_moves_by_keys_and_dragging_and_its_content_is_sent(open_page: Visit) -> None:
    page = open_page("/", reduced_motion="reduce")
    seen: list[Image.Image] = []

    def look(route: Route) -> None:
        seen.append(sent(route))
        answer = route.fetch().json()
        # A cat: hardly any food, and not sure.
        answer["results"][0] |= {"sure": False, "relevant": True, "doubtful": True, "food": 0.6}
        answer["results"][0]["verdict"] = verdict("Soup", 0.9, food=0.6)
        route.fulfill(json=answer)

    page.route("**/api/v1/classify?*", look)
    page.set_input_files("#file", photo(two_colours()))
    expect(page.locator(".card[data-state=answered] h3")).to_contain_text("Not sure this is food")
    expect(page.locator(".card .mark")).to_have_text("! perhaps not food")
    expect(page.locator(".card .hint")).to_have_text("If it is food, the closest class is Soup.")
    expect(page.locator("#looked")).to_contain_text("sees only the marked square")
    assert violations(page) == []
    square = page.locator(".square")
    square.focus()
    for _ in range(11):
        page.keyboard.press("ArrowLeft")
    for _ in range(5):
        page.keyboard.press("-")
    for _ in range(11):
        page.keyboard.press("ArrowLeft")
    # A slow browser has it ask in between as well.
    wait_until(page, lambda: is_small_square_of(seen[-1], 0))
    assert seen[0].size == (800, 400)
    expect(page.locator(".card[data-state=answered]")).to_be_visible()
    assert page.evaluate("document.activeElement.className") == "square"
    box = square.bounding_box()
    assert box
    page.evaluate("sessionStorage.clear()")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 500, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    wait_until(page, lambda: is_small_square_of(seen[-1], 2))
    wait_until(page, lambda: "square" in (page.evaluate("sessionStorage['gourmetgram:cards:/']") or ""))
    at = square.get_attribute("style")
    page.reload()
    expect(square).to_have_attribute("style", at or "")
    bare = open_page("/", java_script_enabled=False)
    bare.set_input_files("#file", photo(two_colours()))
    bare.get_by_role("button", name="Classify", exact=True).click()
    expect(bare.locator(".answer")).to_contain_text("only the square in the middle")


def test_photos_that_the_browser_cannot_show_are_shown_by_the_server_and_have_a_square(
    open_page: Visit,
) -> None:
    page = open_page()
    pillow_heif.register_heif_opener()
    seen: list[Image.Image] = []

    def look(route: Route) -> None:
        seen.append(sent(route))
        route.continue_()

    page.route("**/api/v1/classify?*", look)
    for number, kind in enumerate(("TIFF", "HEIF"), 1):
        page.set_input_files("#file", photo(two_colours(kind), f"a.{kind.lower()}"))
        card = answered(page, number).first
        expect(card.locator("img")).to_have_js_property("naturalWidth", 800)
        card.locator(".square").focus()
        for key in ("-",) * 5 + ("ArrowLeft",) * 11:
            page.keyboard.press(key)
        wait_until(page, lambda: seen and is_small_square_of(seen[-1], 0))
    page.set_input_files("#file", photo(b"none", "b.tiff"))
    expect(page.locator(".card[data-state=failed]")).to_contain_text("Not a photo")


def test_many_cards_are_compact_sorted_filtered_counted_saved_and_opened_again(open_page: Visit) -> None:
    page = open_page("/", reduced_motion="reduce", **PHONE)
    results = {
        "a.jpg": ("Soup", 0.9, 0.99),
        "b.jpg": ("Egg", 0.4, 0.99),
        "c.jpg": ("Bread", 0.3, 0.1),
        "=d.jpg": ("Soup", 0.95, 0.99),
    }
    answer_by_name(page, results)
    expect(page.locator("#counts")).to_have_text("4 answered: Soup 2, not sure 1, not food 1")
    expect(page.get_by_label("Compact view")).to_be_checked()  # on a phone, above three
    small = page.evaluate("document.getElementById('cards').offsetHeight")
    page.get_by_label("Compact view").uncheck()
    assert page.evaluate("document.getElementById('cards').offsetHeight") > 2 * small
    page.get_by_label("Compact view").check()
    assert fits(page)
    assert violations(page) == []
    shown = page.locator(".card")
    order = "cards => cards.map(card => card.getAttribute('aria-label'))"
    assert shown.evaluate_all(order) == list(results)
    page.get_by_label("Sort by").select_option("doubt")
    assert shown.evaluate_all(order) == ["c.jpg", "b.jpg", "a.jpg", "=d.jpg"]
    page.get_by_label("Only not sure").check()
    expect(page.locator(".card:visible")).to_have_count(1)
    page.get_by_role("button", name="Details: b.jpg").click()
    expect(page.locator(".card:visible .top")).to_be_visible()
    page.get_by_role("button", name="Close: b.jpg").click()
    expect(page.locator(".card:visible .top")).to_be_hidden()
    rows = saved_rows(page, "#cards-csv")
    assert [(name, row["label"]) for name, row in rows.items()] == [
        *(("c.jpg", "Bread"), ("b.jpg", "Egg"), ("a.jpg", "Soup"), ("'=d.jpg", "Soup"))
    ]
    page.get_by_label("Only not sure").uncheck()
    page.click("#clear")
    expect(page.locator("#many")).to_be_hidden()
    expect(page.locator("#compact")).not_to_be_checked()
    page.click("#history summary")
    page.get_by_role("button", name="Open: b.jpg").click()
    expect(page.locator(".card h3")).to_contain_text("Egg")
    expect(page.locator(".card .marked")).to_have_text(re.compile(r"^\?\s+not sure\s+40\s%$"))
    expect(page.locator(".card img")).to_have_js_property("naturalWidth", 800)
    page.get_by_role("button", name="Open: b.jpg").click()
    page.get_by_role("button", name="Open: a.jpg").click()
    expect(page.locator(".card")).to_have_count(2)
    assert "photo" not in json.loads(saved(page, "#history-json"))[0]


def test_the_threshold_slider_changes_only_the_marks_of_the_cards(open_page: Visit) -> None:
    answers = {"a.jpg": ("Soup", 0.96, 0.99), "b.jpg": ("Egg", 0.65, 0.99), "c.jpg": ("Soup", 0.88, 0.99)}
    page = open_page("/", reduced_motion="reduce")
    answer_by_name(page, answers)
    counts, slider = page.locator("#counts"), page.get_by_label("When is an answer sure?")
    expect(counts).to_have_text("3 answered: Soup 2, not sure 1")
    expect(page.locator("#strict-note")).to_contain_text("Sure from 80 %")
    expect(page.locator("#strict-note")).to_contain_text("66 have a sure answer, and 95 % of those are right")
    assert violations(page) == []
    slider.press("End")
    expect(counts).to_have_text("3 answered: not sure 3")
    expect(page.get_by_label("a.jpg", exact=True).locator(".mark")).to_have_text("? not sure")
    slider.press("Home")
    expect(counts).to_have_text("3 answered: Soup 2, Egg 1")
    expect(page.get_by_label("b.jpg", exact=True).locator("h3 .label")).to_have_text("Egg")
    expect(page.locator(".card .mark", has_text="not sure")).to_have_count(0)
    page.get_by_label("Only not sure").check()
    expect(page.locator(".card:visible")).to_have_count(0)
    slider.press("End")
    expect(page.locator(".card:visible")).to_have_count(3)

    def without_curve(route: Route) -> None:
        listed = route.fetch().json()
        for model in listed["models"]:
            model.pop("coverage", None)
        route.fulfill(json=listed)

    other = open_page()
    other.route("**/api/v1/models?*", without_curve)
    answer_by_name(other, answers)
    expect(other.locator("#counts")).to_have_text("3 answered: Soup 2, not sure 1")
    expect(other.locator("#strict")).to_be_hidden()


STATES = ("sure", "not_sure", "doubtful", "irrelevant")


def shown(place: Locator) -> tuple[str, str, str]:
    """The words, the mark, and the figure that a card or an entry shows."""
    line = place.locator(".marked")
    figure = line.locator(".share").all_inner_texts()
    return place.locator(".label, b").inner_text(), line.locator(".mark").inner_text(), "".join(figure)


def fading_samples() -> Iterator[bytes]:
    """The samples, in more and more noise: from sure answers to none about food."""
    noise = np.random.default_rng(0).integers(0, 256, (448, 448, 3), dtype=np.uint8)
    for share in (0.0, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8):
        for path in sorted(SAMPLES.glob("*.jpg")):
            picture = Image.open(path).convert("RGB").resize((448, 448))
            yield encoded(Image.blend(picture, Image.fromarray(noise), share), "JPEG")


def test_api_card_compact_card_history_and_both_tables_say_the_same(
    open_page: Visit, python_web: Any, triton: Any, tmp_path: Path
) -> None:
    each = 3
    answers: dict[str, Any] = {}
    kinds = Counter[str]()
    for number, data in enumerate(fading_samples()):
        reply = python_web.request("POST", "/api/v1/classify", data, Content_Type="image/jpeg").json
        (answer,) = reply["results"]
        kinds[answer["verdict"]["state"]] += 1
        if kinds[answer["verdict"]["state"]] <= each:
            answers[f"photo-{number:03}.jpg"] = answer
            (tmp_path / f"photo-{number:03}.jpg").write_bytes(data)
        if min(kinds[state] for state in STATES) >= each:
            break
    assert {state: min(kinds[state], each) for state in STATES} == dict.fromkeys(STATES, each)
    page = open_page()
    files = [tmp_path / name for name in answers]
    page.set_input_files("#file", files)
    answered(page, len(files))
    page.click("#history summary")
    expect(page.locator("#history-list li")).to_have_count(len(files))
    tables = [saved_rows(page, button) for button in ("#cards-csv", "#history-csv")]
    said("classify", *files, "--out", tmp_path / "command.csv", "--url", triton.http_url)
    with (tmp_path / "command.csv").open(newline="") as table:
        tables.append({Path(row["path"]).name: row for row in csv.DictReader(table)})
    for name, answer in answers.items():
        verdict = answer["verdict"]
        likely = verdict.get("probability")
        figure = "" if likely is None else f"{100 * likely:.0f}\u00a0%"
        says = verdict["text"], f"{verdict['sign']} {verdict['word']}", figure
        card = page.get_by_label(name, exact=True)
        assert shown(card) == says  # compact, as there are more than six
        card.locator("[data-do=open]").click()
        assert shown(card) == says
        assert shown(page.locator("#history-list li", has_text=f"{name} ·")) == says
        for row in (table[name] for table in tables):
            assert row["verdict"] == verdict["text"]
            assert row["label"] == answer["label"]
            assert row["dish"] == answer.get("dish", "")
            assert row["candidates"] == " or ".join(guess["label"] for guess in answer.get("candidates", ()))
            booleans = [json.loads(row[word]) for word in ("sure", "relevant", "doubtful")]
            assert booleans == [answer["sure"], answer["relevant"], answer["doubtful"]]
            for figure in ("probability", "food", "threshold"):
                assert float(row[figure]) == pytest.approx(answer[figure], abs=1e-3)
            if likely is not None:
                assert float(row["probability"]) == pytest.approx(likely, abs=1e-3)


def test_two_photos_are_sent_at_once_and_above_six_the_view_is_compact_with_failures_in_the_table(
    open_page: Visit,
) -> None:
    page = open_page()
    under_way: set[Any] = set()
    max_under_way = 0

    def begun(request: Any) -> None:
        nonlocal max_under_way
        if request.method == "POST":
            under_way.add(request)
            max_under_way = max(max_under_way, len(under_way))

    page.on("request", begun)
    page.on("requestfinished", lambda request: under_way.discard(request))
    page.set_input_files("#file", [photo(two_colours(), f"{number}.jpg") for number in range(6)])
    answered(page, 6)
    assert 1 <= max_under_way <= 2
    expect(page.locator("#compact")).not_to_be_checked()
    page.set_input_files("#file", photo(b"no photo", "bad.jpg"))
    failed = page.locator(".card[data-state=failed]")
    expect(failed).to_contain_text("Not a photo")
    expect(failed).to_contain_text("not a picture")
    expect(page.locator("#compact")).to_be_checked()
    expect(page.locator("#counts")).to_contain_text("failed 1")
    box = failed.bounding_box()
    assert box
    assert box["width"] < 300
    rows = saved_rows(page, "#cards-csv")
    assert rows["bad.jpg"]["error"].startswith("Not a photo: ")
    assert rows["0.jpg"]["error"] == ""
    page.get_by_label("Compact view").uncheck()
    expect(failed.locator("[data-do]:visible")).to_have_text(["Remove"])  # to try again would not help
    failed.get_by_role("button", name="Remove").click()
    expect(page.locator(".card")).to_have_count(6)


def test_cards_survive_a_refresh_until_they_are_removed(open_page: Visit, sample: bytes) -> None:
    page = open_page()
    page.set_input_files("#file", [photo(sample, f"{name}.jpg") for name in "abc"])
    shown = answered(page, 3).locator("h3").all_inner_texts()
    wait_until(
        page, lambda: page.evaluate("JSON.parse(sessionStorage['gourmetgram:cards:/'] ?? '[]').length === 3")
    )
    page.reload()
    assert answered(page, 3).locator("h3").all_inner_texts() == shown
    assert page.locator("figcaption").all_inner_texts() == ["a.jpg", "b.jpg", "c.jpg"]
    expect(page.locator(".card img").first).to_have_js_property("naturalWidth", 448)
    # The photo is there too: such a card can be compared, explained and tried again.
    expect(page.locator("[data-do=why]")).to_have_count(3)
    choose(page.locator(".card").first, "again")
    answered(page, 3)
    for removed, focused in (("b", "c.jpg"), ("c", "a.jpg")):
        choose(page.get_by_label(f"{removed}.jpg", exact=True), "remove")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == focused
    page.reload()
    answered(page)
    page.get_by_role("button", name="Remove all").click()
    page.reload()
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator(".card")).to_have_count(0)


def test_a_correction_stays_visible_when_panels_open_and_offers_not_food(
    open_page: Visit, corrections: Path
) -> None:
    page = open_page()
    page.set_input_files("#file", photo(two_colours()))
    correction = page.get_by_role("button", name="Not right?")
    expect(correction).to_be_visible()
    choose(page.locator(".card"), "compare")
    expect(page.locator(".card .panel")).to_have_count(3)
    expect(correction).to_be_visible()
    page.get_by_role("button", name="Why this answer?").click()
    expect(page.locator(".why")).to_be_visible()
    correction.click()
    page.get_by_role("button", name="not food").click()
    expect(page.locator(".correction .note")).to_contain_text("kept as not food")
    assert len(list(corrections.glob("food11/other/*.jpg"))) == 1
    page.reload()
    expect(page.locator(".said")).to_contain_text("You said: not food.")
    page.locator("#history > summary").click()
    expect(page.locator("#history-list")).to_contain_text("You said: not food.")
    assert list(saved_rows(page, "#history-csv", "you_said")) == ["not food"]


def test_cards_that_another_version_answered_are_marked_and_asked_again(open_page: Visit) -> None:
    page = open_page()
    page.set_input_files("#file", photo(two_colours()))
    expect(page.locator(".card .top")).to_be_visible()
    for version, count in (("2", 1), ("1", 0), ("2", 1)):
        page.evaluate(
            f"document.dispatchEvent(new CustomEvent('gourmet:version', {{ detail: '{version}' }}))"
        )
        expect(page.locator(".outdated")).to_have_count(count)
        expect(page.locator("#again-all")).to_be_visible(visible=bool(count))
    expect(page.locator(".outdated")).to_contain_text("Version 1 said this.")
    held: list[Route] = []
    page.route("**/api/v1/classify?*", lambda route: held.append(route))
    page.get_by_role("button", name="Ask again all").click()
    wait_until(page, lambda: held)
    # The slider's thresholds may come now, when the card has no answer that they could judge.
    page.evaluate("document.dispatchEvent(new CustomEvent('gourmet:strictness'))")
    held[0].continue_()
    expect(page.locator(".outdated")).to_have_count(0)
    expect(page.locator(".card .top")).to_be_visible()
