"""Photos described in a real browser by a real Triton: watched, edited, copied, kept, and taken along."""

from __future__ import annotations

import base64
import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from support.pages import VIEWS, choose, fits, photo, violations
from support.slow_captioner import slow_captioner
from support.triton import RunningTriton, run_triton, some_models
from support.web_app import StartWeb, WebApp

from app.api.routes import EXAMPLES
from gourmet.systems.food11.contract import SAMPLES

SYSTEMS = Path(__file__).parents[1] / "support" / "systems"
CUPCAKES, SOUP = (next(SAMPLES.glob(f"*_{name}.jpg")).read_bytes() for name in ("cupcakes", "green-soup"))
DESCRIBE = """async ([example, photo]) => {
  const describe = new Function(`${example}; return describe;`)();
  const bytes = Uint8Array.from(atob(photo), (letter) => letter.charCodeAt(0));
  const words = [];
  await describe(new File([bytes], "photo.jpg"), (text) => words.push(text));
  return words;
}"""
WATCH = """() => {
  window.seen = new Set();
  setInterval(() => {
    const text = document.querySelector("#cards textarea");
    if (text?.readOnly) window.seen.add(text.value);
  }, 10);
}"""


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    models = slow_captioner(tmp_path_factory.mktemp("captioner"), threshold=-0.6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_SYSTEMS", str(SYSTEMS))
        patch.setenv("CAPTIONS_PAUSE_S", "0.05")
        yield from run_triton(some_models(models, "food_classifier_onnx"))


@pytest.fixture(scope="module")
def web(captioner: RunningTriton, start: StartWeb) -> WebApp:
    return start(captioner.http_url, FOOD11_MODEL_NAME="food_classifier_onnx")


def described(page: Page, **photos: bytes) -> Locator:
    """The cards of these, once they have their captions."""
    page.set_input_files("#file", [photo(data, f"{name}.jpg") for name, data in photos.items()])
    expect(page.locator(".card:is([data-state=answered], [data-state=failed])")).to_have_count(len(photos))
    assert page.locator(".problem:visible").all_inner_texts() == []
    return page.locator(".card[data-state=answered]")


def copied(page: Page, card: Locator, how: str) -> str:
    if how == "text":
        card.locator("[data-do=text]").click()
    else:
        choose(card, how)
    expect(page.locator("#spoken")).to_have_text("Copied")
    page.evaluate("document.getElementById('spoken').textContent = ''")
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_a_caption_grows_word_by_word_and_is_edited_before_it_is_copied(
    visit: Callable[..., Page], web: WebApp
) -> None:
    page = visit(web.url, permissions=["clipboard-read", "clipboard-write"])
    page.click("nav summary")
    page.click("nav >> text=Caption")
    page.wait_for_load_state()
    expect(page.locator(".lede")).to_contain_text("Flickr8k")
    page.evaluate(WATCH)
    card = described(page, **{"my (best) soup": SOUP})
    text = card.locator("textarea")
    whole = text.input_value()
    seen = sorted(page.evaluate("[...window.seen]"), key=len)
    assert len(seen) > 5
    assert all(whole.startswith(prefix) for prefix in seen)
    expect(page.locator("#spoken")).to_have_text(f"my (best) soup.jpg: {whole}")
    expect(card.locator(".facts")).to_contain_text("captioner_stream version 1")
    expect(card.locator(".facts")).to_contain_text("first word after")
    card.locator(".time summary").click()
    phases = card.locator(".waterfall .name").all_inner_texts()
    assert [phase for phase in phases if phase != "Queue in the app"] == [
        *("Upload", "Receive", "Decode", "To the first word", "All further words", "Response")
    ]
    expect(card.locator(".note").first).to_contain_text("Written by a model")
    assert copied(page, card, "text") == whole
    text.fill('A "green" soup <hot> & [fresh]')
    expect(card.locator(".note").first).to_have_text("Edited by you.")
    assert copied(page, card, "alt") == 'alt="A &quot;green&quot; soup &lt;hot> &amp; [fresh]"'
    assert copied(page, card, "markdown") == (
        r'![A "green" soup <hot> & \[fresh\]](my%20%28best%29%20soup.jpg)'
    )
    text.fill(whole)
    expect(card.locator(".note").first).to_contain_text("Written by a model")


def test_alternative_captions_are_offered_and_a_low_score_is_shown(
    visit: Callable[..., Page], web: WebApp
) -> None:
    page = visit(f"{web.url}/caption")
    cards = described(page, soup=SOUP)
    expect(cards.locator(".doubt")).to_contain_text("Not sure")
    choose(cards, "others")
    wordings = cards.locator(".wordings li")
    expect(wordings).to_have_count(4)
    offered = wordings.all_inner_texts()
    assert len(set(offered)) == 4
    assert offered[0] == cards.locator("textarea").input_value()
    wordings.nth(2).locator("button").click()
    expect(cards.locator("textarea")).to_have_value(offered[2])
    expect(cards.locator(".note").first).to_contain_text("Written by a model")
    cards.locator("textarea").fill("Soup.")
    expect(cards.locator(".doubt")).to_be_hidden()  # it is no longer what the model said


def test_a_folder_becomes_a_table_and_captions_outlive_a_reload(
    visit: Callable[..., Page], web: WebApp, tmp_path: Path
) -> None:
    folder = tmp_path / "trip"
    folder.mkdir()
    for name, data in {"=1.jpg": SOUP, "cakes.jpg": CUPCAKES, "notes.txt": b"no photo"}.items():
        (folder / name).write_bytes(data)
    page = visit(f"{web.url}/caption")
    page.set_input_files("#folder", folder)
    expect(page.locator(".card")).to_have_count(2)
    expect(page.locator(".card[data-state=answered]")).to_have_count(2)
    edited = page.locator(".card", has_text="cakes.jpg").locator("textarea")
    edited.fill("Six cakes, all of them white")
    edited.blur()
    rows = {}
    for _ in range(2):
        with page.expect_download() as download:
            page.click("#cards-csv")
        text = Path(download.value.path()).read_text()
        rows = {row["file"]: row for row in csv.DictReader(io.StringIO(text))}
        assert rows.keys() == {"trip/=1.jpg", "trip/cakes.jpg"}
        assert rows["trip/cakes.jpg"]["text"] == "Six cakes, all of them white"
        assert [rows[f"trip/{name}"]["written_by"] for name in ("cakes.jpg", "=1.jpg")] == ["person", "model"]
        assert (rows["trip/=1.jpg"]["model"], rows["trip/=1.jpg"]["sure"]) == ("captioner_stream", "false")
        assert float(rows["trip/=1.jpg"]["score"]) < 0
        page.reload()
        expect(page.locator(".card[data-state=answered]")).to_have_count(2)
    page.click("#clear")
    expect(page.locator("#cards-csv")).to_be_hidden()


def test_a_bad_photo_fails_alone_and_a_growing_caption_can_be_cancelled(
    visit: Callable[..., Page], web: WebApp
) -> None:
    page = visit(f"{web.url}/caption")
    page.set_input_files("#file", [photo(b"no photo", "notes.jpg"), photo(SOUP, "soup.jpg")])
    expect(page.locator(".card[data-state=failed]")).to_contain_text("Not a photo")
    growing = page.locator(".card", has_text="soup.jpg")
    expect(growing.locator("textarea")).not_to_have_value("")
    growing.get_by_role("button", name="Cancel").click()
    expect(growing).to_contain_text("This photo was not described")
    growing.get_by_role("button", name="Try again").click()
    expect(page.locator(".card[data-state=answered]")).to_have_count(1)


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_problem_while_a_caption_grows_and_after(
    visit: Callable[..., Page], web: WebApp, view: dict[str, Any]
) -> None:
    page = visit(f"{web.url}/caption", reduced_motion="reduce", **view)
    problems = violations(page)
    page.set_input_files("#file", photo(SOUP))
    expect(page.locator("textarea[aria-busy]")).not_to_have_value("")
    problems += violations(page)
    card = page.locator(".card[data-state=answered]")
    choose(card, "others")
    expect(card.locator(".wordings li")).to_have_count(4)
    card.locator(".time summary").click()
    problems += violations(page)
    assert problems == []
    assert fits(page)


def test_the_caption_examples_of_the_api_page_print_captions(
    visit: Callable[..., Page], web: WebApp, tmp_path: Path
) -> None:
    def example(name: str) -> str:
        code = (EXAMPLES / "caption" / f"{name}.txt").read_text()
        return code.replace("http://localhost:5000", web.url)

    for name, data in {"photo.jpg": SOUP, "other.jpg": CUPCAKES}.items():
        (tmp_path / name).write_bytes(data)
    several, *stream = run(["bash", "-ec", example("curl")], tmp_path).splitlines()
    assert [len(result["alternatives"]) for result in json.loads(several)["results"]] == [2, 2]
    assert stream[0] == "event: piece"
    first, *others = run([sys.executable, "-c", example("python")], tmp_path).splitlines()
    assert first.endswith(" (not sure)")
    assert [line.startswith("or: a photograph of") for line in others] == [True, True]
    page = visit(f"{web.url}/api/docs")
    words = page.evaluate(DESCRIBE, [example("javascript"), base64.b64encode(SOUP).decode()])
    assert len(words) > 5
    assert "".join(words).startswith("a photograph of ")


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_javascript_a_form_describes_one_photo(visit: Callable[..., Page], web: WebApp) -> None:
    page = visit(f"{web.url}/caption", java_script_enabled=False)
    expect(page.locator("#folder")).to_be_hidden()
    page.set_input_files("#file", photo(SOUP))
    page.click("form button")
    expect(page.locator("textarea")).to_contain_text("a photograph of ")
    expect(page.locator(".caption")).to_contain_text("Written by a model")
    expect(page.locator(".caption")).to_contain_text("Not sure")
    page.click("text=Describe another photo")
    page.set_input_files("#file", photo(b"no photo at all", "a.txt"))
    page.click("form button")
    expect(page.locator(".problem")).to_contain_text("not a picture")
