"""A user's own systems beside a stack that runs: new, asked, versioned and removed, and nothing is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import onnx
import pytest
from playwright.sync_api import Page, expect
from support.life import everything, git_status, gourmet, listed, verb
from support.onnx_network import BYTE, HALF, network
from support.repeating import Repeating
from support.small_network import ARCHITECTURE, LABELS, saved
from support.small_translator import GERMAN, saved_translator
from support.triton import some_models
from support.up import Up
from support.web_app import Site, form

from gourmet.stack.processes import wait_until
from gourmet.systems import registry

pytestmark = pytest.mark.slow
OURS = ("food_classifier_onnx", "translator", "translator_stream")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder with two broken systems: the model of one cannot be loaded, one has no sample."""
    folder = tmp_path_factory.mktemp("a home with spaces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_KEYS", str(tmp_path_factory.mktemp("keys")))
        patch.setenv("GOURMET_HOME", str(folder))
        patch.setenv("FOOD11_MODEL_NAME", OURS[0])
        patch.delenv("GOURMET_SYSTEMS", raising=False)
        for name in ("stones", "shells"):
            verb("new", name, "--labels", "a,b")
        (folder / "systems" / "shells" / "sample.jpg").unlink()
        (folder / "models" / "stones_onnx" / "1").mkdir(parents=True)
        system = 'parameters { key: "system" value: { string_value: "stones" } }'
        config = f'name: "stones_onnx" backend: "onnxruntime" {system}'
        (folder / "models" / "stones_onnx" / "config.pbtxt").write_text(config)
        yield folder
    registry.load.cache_clear()


@pytest.fixture(scope="module")
def up(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    models = some_models(tmp_path_factory.mktemp("models"), *OURS)

    def there() -> list[Path]:
        paths = everything(home, models)
        return [path for path in paths if "__pycache__" not in path.parts]  # Python's own, of our models

    before, clone = there(), git_status()
    repositories = (f"--model-repository={models}", f"--model-repository={home / 'models'}")
    with Up(*repositories, tmp=tmp_path_factory.mktemp("tmp")) as running:
        yield running
    assert there() == before
    assert git_status() == clone
    assert not running.leftovers()


@pytest.fixture
def web(up: Up) -> Iterator[Site]:
    """The web app; what a test made is removed at its end, and nothing else is."""
    began = {name: row["state"] for name, row in listed().items()}
    yield Site(up.port)
    assert {name: row["state"] for name, row in listed().items()} == began


def classify(web: Site, photo: bytes, **query: object) -> Any:
    return web.request("POST", f"/api/v1/classify?{urlencode(query)}", photo, Content_Type="image/jpeg")


def label_on_page(page: Page, photo: bytes, where: str) -> str:
    page.set_input_files("#file", {"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": photo})
    expect(page.locator(".card[data-state=answered]")).to_have_count(1)
    return page.locator(where).first.inner_text()


def test_broken_systems_do_not_stop_the_stack_from_starting(web: Site) -> None:
    paths = ("/", "/compare", "/readyz", "/classify/stones", "/api/v1/models")
    assert {path: web.request("GET", path).status for path in paths} == dict.fromkeys(paths, 200)
    assert web.request("GET", "/classify/shells").status == 404
    rows = listed()
    assert (rows["stones_onnx"]["state"], rows["shells"]["state"]) == ("failed", "broken")


@pytest.mark.promise("README: loads it into the running stack")
def test_third_party_weights_answer_on_the_page_and_the_api_until_they_are_removed(
    web: Site, tmp_path: Path, visit: Callable[..., Page], sample: bytes
) -> None:
    wanted = ("--labels", ",".join(LABELS), "--weights", saved(tmp_path / "best.pth"))
    output = gourmet("new", "flowers", *wanted, "--architecture", ARCHITECTURE)
    assert "flowers_onnx answers: the sample is " in output
    assert f"{web.url}/classify/flowers" in output
    row = listed()["flowers_onnx"]
    about = tuple(row[key] for key in ("system", "version", "state", "by"))
    assert about == ("flowers", 1, "serves", "gourmet new")
    assert row["requests"] >= 1
    assert row["memory_bytes"] > 10_000_000

    label = classify(web, sample, model="flowers_onnx").json["results"][0]["label"]
    assert label in LABELS
    assert label_on_page(visit(f"{web.url}/classify/flowers"), sample, ".card .top li .name") == label

    statuses: list[int] = []
    with Repeating(lambda *_: statuses.append(classify(web, sample, model=OURS[0]).status)):
        wait_until(lambda: bool(statuses), 60, "no answer")
        verb("remove", "flowers", "--yes")
    assert set(statuses) == {200}
    assert [web.request("GET", path).status for path in ("/classify/flowers", "/readyz")] == [404, 200]


def test_a_half_precision_multi_label_network_with_external_weights_answers(
    web: Site, tmp_path: Path, visit: Callable[..., Page], sample: bytes
) -> None:
    path = tmp_path / "tags.onnx"
    head = np.array([[9.0, 8.0, -90.0]] + [[0.1, 0.1, 0.1]] * 2, np.float32)
    model = network(("n", "high", "wide", 3), HALF, head=head)
    onnx.save(model, path, save_as_external_data=True, location="tags.onnx.data", size_threshold=0)
    wanted = ("--labels=bright,red,dark", f"--weights={path}", "--multi-label", "--size=32", "--scale=1/255")
    assert "tags_onnx answers: the sample is " in verb("new", "tags", *wanted)

    (result,) = classify(web, sample, model="tags_onnx").json["results"]
    assert [entry["label"] for entry in result["labels"]] == ["bright", "red"]
    assert sum(entry["probability"] for entry in result["labels"]) > 1.0
    assert result["sure"]
    assert label_on_page(visit(f"{web.url}/classify/tags"), sample, ".card h3 .label") == "bright, red"
    body, headers = form(sample)
    posted = web.request("POST", "/classify/tags", body, Accept="text/html", **headers)
    assert "bright, red" in posted.body.decode(), "without JavaScript too"
    verb("remove", "tags", "--yes")


def test_versions_serve_as_the_config_says_and_files_that_do_not_fit_are_refused(
    web: Site, tmp_path: Path, sample: bytes
) -> None:
    (tmp_path / "text.pth").write_text("no weights")
    files = {
        "first": network(),
        "last": network(("n", 8, 8, 3), BYTE),
        "masks": network(("n", 3, 8, 8), scores=("n", 2, 8, 8)),
    }
    for name, model in files.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    wrong = {
        "cannot be read as": ("--weights", tmp_path / "masks.onnx"),
        "is not a file of weights": ("--weights", tmp_path / "text.pth", "--architecture", ARCHITECTURE),
    }
    for reason, words in wrong.items():
        assert reason in verb("new", "wrong", "--labels", "a,b,c", *words, succeeds=False)
        assert web.request("GET", "/classify/wrong").status == 404
    new = verb("new", "first", "--labels", "a,b,c", "--weights", tmp_path / "first.onnx")
    assert "first_onnx answers: the sample is " in new

    def answered(version: int) -> int:
        return int(classify(web, sample, model="first_onnx", version=version).status)

    for version in (2, 3):
        output = verb("deploy", "first", "--weights", tmp_path / "first.onnx")
        assert f"first_onnx/{version}\n" in output
    verb("config", "first_onnx", "--versions", "2,3")
    assert [answered(version) for version in (1, 2, 3)] == [404, 200, 200]
    verb("config", "first_onnx", "--reset")
    other = verb("deploy", "first", "--weights", tmp_path / "last.onnx", succeeds=False)
    assert "layout 'NHWC', not 'NCHW'" in other
    # It is 503 while Triton unloads it.
    wait_until(lambda: [answered(version) for version in (2, 3)] == [404, 200], 60, "2 still serves")
    assert "version 3 is withdrawn, version 2 serves" in verb("rollback", "first")
    assert answered(2) == 200
    verb("remove", "first", "--yes")


def test_a_second_language_pair_is_added_asked_versioned_and_removed(
    web: Site, up: Up, tmp_path: Path, visit: Callable[..., Page]
) -> None:
    checkpoint = saved_translator(tmp_path / "theirs", [*GERMAN] * 5, 70)
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(GERMAN))

    def post(path: str = "translate", **body: Any) -> str:
        reply = web.request("POST", f"/api/v1/{path}", json.dumps(body), Content_Type="application/json")
        return reply.body.decode()

    def asked(text: str = "Ich mag Tee.", **body: Any) -> tuple[str, str]:
        """The translation and the model that made it."""
        reply = json.loads(post(text=text, **body))
        return reply["translations"][0]["text"], reply["model"]["name"]

    ours = ("I like tea.", "translator")
    new = ("new", "german", "--like", "translator", "--checkpoint", checkpoint, "--languages", "de,en")
    output = verb(*new, "--data", sentences, "--title", "German to English", "--fp32")
    assert "german answers: «Ich mag Tee.» → " in output
    assert "german_stream answers: «Ich mag Tee.» → " in output
    assert f"{web.url}/translate/german" in output
    rows = listed()
    about = {tuple(rows[name][key] for key in ("state", "system")) for name in ("german", "german_stream")}
    assert about == {("serves", "german")}

    # The API: by the system, by the model, in pieces; and the other pair is as it was.
    answer, model = asked(system="german")
    assert (asked(model="german"), model) == ((answer, model), "german")
    assert asked(model="german_stream") == (answer, "german_stream")
    done = post(text="Ich mag Tee.", system="german", stream=True).partition("event: done\ndata: ")[2]
    assert (json.loads(done)["text"], json.loads(done)["model"]["name"]) == (answer, "german_stream")
    assert json.loads(post("generate", text="Ich mag Tee.", model="german"))["text"] == answer
    assert asked("Я люблю чай.") == ours
    assert b'\ngerman_generations_total{model="german"}' in web.request("GET", "/metrics").body

    # The verbs.
    url = ("--url", f"127.0.0.1:{up.http}")
    assert answer in verb("translate", "Ich mag Tee.", "--system", "german", *url)
    assert "german version 1: 4 of 4 texts answered" in verb("check", "german", "--limit", 4, *url)
    assert "compared with german" in verb("check", "german_stream", "--limit", 4, *url)

    # Its page, with and without a script.
    opened = visit(f"{web.url}/translate/german")
    assert opened.locator("h1").inner_text() == "German to English"
    assert opened.locator("#from").inner_text().lower() == "german"
    opened.fill("#text", "Ich mag Tee.")
    expect(opened.locator("#language")).to_be_hidden()
    opened.click("#go")
    expect(opened.locator("#facts")).to_contain_text("german_stream")
    assert opened.locator("#translation").text_content() == answer
    posted = urlencode({"text": "Wo ist der Bahnhof?"})
    kind = "application/x-www-form-urlencoded"
    html = web.request("POST", "/translate/german", posted, Content_Type=kind, Accept="text/html")
    assert asked("Wo ist der Bahnhof?", system="german")[0] in html.body.decode()

    # A second version of both models, and back in one step.
    output = verb("deploy", "german", "--checkpoint", checkpoint, "--fp32")
    assert output.count(" answers: «Ich mag Tee.» → ") == 2
    output = verb("rollback", "german")
    for name in ("german", "german_stream"):
        assert f"{name}: version 2 is withdrawn, version 1 serves" in output
    assert asked(system="german") == (answer, "german")
    verb("remove", "german", "--yes")
    assert web.request("GET", "/translate/german").status == 404
    assert asked("Я люблю чай.") == ours
