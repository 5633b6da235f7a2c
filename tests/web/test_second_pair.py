"""Another pair of languages beside ours, from the checkpoint that somebody brings to its end."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from support.life import everything, git_status, gourmet, home, listed, status, verb
from support.small_translator import GERMAN, saved_translator
from support.triton import some_models
from support.up import Up

__all__ = ["home"]  # the fixture
JSON = {"Content-Type": "application/json"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_second_language_pair_is_added_versioned_renamed_and_removed(
    home: Path, tmp_path: Path, visit: Callable[..., Page]
) -> None:
    models = some_models(tmp_path / "models", "food_classifier_onnx", "translator", "translator_stream")
    checkpoint = saved_translator(tmp_path / "theirs", [*GERMAN] * 5, 70)
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(GERMAN))

    def there() -> list[Path]:
        kept = {"systems", "__pycache__"}  # Python's own, of our models too
        return [path for path in everything(home, models) if not kept & {path.name, path.parent.name}]

    before, clone = there(), git_status()
    up = Up(f"--model-repository={models}", f"--model-repository={home / 'models'}", tmp=tmp_path / "tmp")
    page = f"http://127.0.0.1:{up.port}"

    def post(path: str = "translate", **body: Any) -> str:
        request = urllib.request.Request(f"{page}/api/v1/{path}", json.dumps(body).encode(), JSON)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def asked(text: str = "Ich mag Tee.", **body: Any) -> tuple[str, str]:
        """The translation and the model that made it."""
        reply = json.loads(post(text=text, **body))
        return reply["translations"][0]["text"], reply["model"]["name"]

    def ours() -> tuple[tuple[str, str], int]:
        """Return a translation of the first pair and its number of versions."""
        return asked("Я люблю чай."), sum(row.startswith("translator") for row in listed())

    try:
        up.wait_for("ready after")
        began, first = listed().keys(), ours()
        assert first[0] == ("I like tea.", "translator")

        new = ("new", "german", "--like", "translator", "--checkpoint", checkpoint, "--languages", "de,en")
        output = gourmet(*new, "--data", sentences, "--title", "German to English", "--fp32")
        assert "german answers: «Ich mag Tee.» → " in output
        assert "german_stream answers: «Ich mag Tee.» → " in output
        assert f"{page}/translate/german" in output
        assert ours() == first
        rows = listed()
        assert {rows[name]["state"] for name in ("german", "german_stream")} == {"serves"}
        assert {(rows[name]["system"], rows[name]["by"]) for name in ("german", "german_stream")} == {
            ("german", "gourmet new")
        }

        # The API: by the system, by the model, in pieces; and the model of another task is none.
        answer, model = asked(system="german")
        assert (asked(model="german"), model) == ((answer, model), "german")
        assert asked(model="german_stream") == (answer, "german_stream")
        done = post(text="Ich mag Tee.", system="german", stream=True).partition("event: done\ndata: ")[2]
        assert (json.loads(done)["text"], json.loads(done)["model"]["name"]) == (answer, "german_stream")
        assert json.loads(post("generate", text="Ich mag Tee.", model="german"))["text"] == answer
        with urllib.request.urlopen(f"{page}/readyz", timeout=30) as ready:
            assert json.load(ready)["systems"]["german"]["ready"] is True
        with urllib.request.urlopen(f"{page}/metrics", timeout=30) as figures:
            assert b'\ngerman_generations_total{model="german"}' in figures.read()

        # The verbs.
        url = ("--url", f"127.0.0.1:{up.http}")
        for chosen in (("--system", "german"), ("--model", "german")):
            assert answer in verb("translate", "Ich mag Tee.", *chosen, *url)
        assert "I like tea." in verb("translate", "Я люблю чай.", *url)
        assert "german version 1: 4 of 4 texts answered" in verb("check", "german", "--limit", 4, *url)
        assert "compared with german" in verb("check", "german_stream", "--limit", 4, *url)

        # Its page, with and without a script; ours is as it was.
        opened = visit(f"{page}/translate/german")
        assert opened.locator("h1").inner_text() == "German to English"
        assert opened.locator("#from").inner_text().lower() == "german"
        assert opened.locator("nav [aria-current]").inner_text() == "German to English"
        opened.fill("#text", "Ich mag Tee.")
        expect(opened.locator("#language")).to_be_hidden()
        opened.click("#go")
        expect(opened.locator("#facts")).to_contain_text("german_stream")
        assert opened.locator("#translation").text_content() == answer
        posted = urllib.parse.urlencode({"text": "Wo ist der Bahnhof?"}).encode()
        with urllib.request.urlopen(f"{page}/translate/german", posted, timeout=60) as form:
            assert asked("Wo ist der Bahnhof?", system="german")[0] in form.read().decode()
        assert visit(f"{page}/translate").locator("h1").inner_text() == "Russian to English"

        # A second version of both models, and back in one step.
        output = verb("deploy", "german", "--checkpoint", checkpoint, "--fp32")
        assert output.count(" answers: «Ich mag Tee.» → ") == 2
        assert {row["version"] for name, row in listed().items() if name.startswith("german")} >= {2}
        output = verb("rollback", "german")
        assert [
            f"{name}: version 2 is withdrawn, version 1 serves" in output
            for name in ("german", "german_stream")
        ] == [
            True,
            True,
        ]
        assert asked(system="german") == (answer, "german")

        verb("remove", "german", "--yes")
        assert status(f"{page}/translate/german") == 404
        assert (listed().keys(), ours()) == (began, first)
    finally:
        up.stop()
    assert there() == before
    assert git_status() == clone
    assert not up.leftovers()
