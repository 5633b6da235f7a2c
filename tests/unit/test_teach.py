"""The panel "Teach it" and the page "New classifier", and what `gourmet up` does for them."""

from __future__ import annotations

import io
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flask.testing import FlaskClient
from support.eventually import eventually
from support.fake_classifier import EGG, FakeClassifier, client

from app.pages.corrections import counts, keep, name_of, stored
from gourmet.pictures.made_up import views
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack.teaching import Teaching, listening, teachable
from gourmet.systems.food11.contract import SYSTEM

MODEL = DEFAULT_REPOSITORY / "food_classifier"
JSON = {"Accept": "application/json"}
DRAWING = Path(__file__).parents[1] / "drawings" / "bread.jpg"
AN_API_KEY = "k" * 20


@pytest.fixture(scope="module")
def photos() -> list[bytes]:
    return views(DRAWING.read_bytes(), 8, size=(300, 300), seed=1)


@pytest.fixture
def socket(home: Path, photos: list[bytes]) -> Iterator[Path]:
    corrections = home / "corrections" / "food11" / "Rice"
    corrections.mkdir(parents=True)
    for number, view in enumerate(photos):
        (corrections / f"{number}.jpg").write_bytes(view)
    teaching = Teaching([DEFAULT_REPOSITORY], home / "corrections", "127.0.0.1:9", lambda _text: None)
    with listening(teaching, "teach.sock") as path:
        yield path


@pytest.fixture
def browser(socket: Path, home: Path) -> FlaskClient:
    return client(teach_socket=socket, keep_corrections=home / "corrections")


def ask(browser: FlaskClient, job: str, **headers: str) -> tuple[int, dict]:
    reply = browser.post("/teach", data={"do": job}, headers={**JSON, **headers})
    return reply.status_code, reply.get_json()


def state(browser: FlaskClient) -> dict:
    return browser.get("/teach", headers=JSON).get_json()["state"]


def test_without_a_teacher_the_panel_names_the_commands(tmp_path: Path) -> None:
    for settings, words in (
        ({}, "KEEP_CORRECTIONS=corrections"),
        ({"keep_corrections": tmp_path}, f"gourmet learn-more food11 {tmp_path}/food11"),
    ):
        page = client(**settings).get("/").text
        assert words in page
        assert "gourmet deploy food11 --weights runs/food11-more/learned.npz" in page
        assert 'value="learn"' not in page


def test_only_this_user_can_open_the_socket_also_at_a_long_path(
    socket: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    monkeypatch.setenv("GOURMET_HOME", str(home / ("long" * 30)))
    with listening(Teaching([DEFAULT_REPOSITORY], home, "", print), "teach.sock") as path:
        reply = client(teach_socket=path, keep_corrections=home).get("/teach", headers=JSON).get_json()
        assert reply["state"]["version"] == 1
    assert not path.exists()


def test_one_job_runs_at_a_time_and_can_be_cancelled(browser: FlaskClient) -> None:
    page = browser.get("/").text
    assert "Rice: 8" in page
    assert 'value="learn"' in page
    assert ask(browser, "learn")[1]["state"]["job"] == "learn"
    assert ask(browser, "undo")[1]["state"]["job"] == "learn", "the first one goes on"
    eventually(lambda: state(browser)["share"] > 0)
    page = browser.get("/teach", headers={"Accept": "text/html"}).text
    assert "<progress" in page
    assert "Look again" in page, "without a script"
    ask(browser, "cancel")
    eventually(lambda: not state(browser)["job"])
    assert state(browser)["error"] == "cancelled"


def test_the_panel_shows_the_error_of_a_verb(browser: FlaskClient) -> None:
    ask(browser, "use")
    eventually(lambda: not state(browser)["job"])
    assert "learned.npz is not what `gourmet learn-more` wrote" in state(browser)["error"]
    assert "learned.npz is not what" in browser.get("/").text


def verb_of(program: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put this shell script in the place of `gourmet`."""
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_a_verb_that_cannot_start_ends_the_job(
    browser: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone" / "python"))
    ask(browser, "learn")
    eventually(lambda: not state(browser)["job"])
    assert "it cannot be run: " in state(browser)["error"]


def test_the_result_before_is_replaced_only_by_a_new_one(
    browser: FlaskClient, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = home / "taught" / "food11" / "learned.npz"
    learned = '{"kept": [], "own": [], "doubted": [], "sentence": "Better"}'
    # `learn-more SYSTEM FOLDER --to MODELS --out RUN --json`
    for body, number, error in (
        (f"echo '{learned}'; echo one > $7/learned.npz", "one", ""),
        (
            f"echo '{{ no JSON'; echo '{learned}'; echo two > $7/learned.npz; echo Error: worse; exit 1",
            "one",
            "worse",
        ),
        (f"echo '{learned}'; echo three > $7/learned.npz", "three", ""),
    ):
        verb_of(tmp_path / "gourmet", monkeypatch, f"mkdir -p $7; test ! -e $7/learned.npz && {body}")
        ask(browser, "learn")
        eventually(lambda: not state(browser)["job"])
        assert state(browser)["error"] == error
        assert state(browser)["learned"] == {"kept": [], "own": [], "doubted": [], "sentence": "Better"}
        assert result.read_text() == f"{number}\n"


def test_many_corrections_cost_a_view_of_the_page_next_to_nothing(tmp_path: Path) -> None:
    for label in ("Rice", "other"):
        (tmp_path / label).mkdir()
        for number in range(3_000):
            (tmp_path / label / f"{number}.jpg").touch()
    assert counts(tmp_path) == {"Rice": 3_000, "other": 3_000}
    (tmp_path / "Rice" / "0.jpg").unlink()
    assert counts(tmp_path)["Rice"] == 2_999
    started = time.thread_time()
    counts(tmp_path)
    assert time.thread_time() - started < 0.005  # 0.0002 s; 0.19 s where it looked at each file


def test_a_form_without_a_script_leads_to_the_panel(browser: FlaskClient) -> None:
    reply = browser.post("/teach", data={"do": "cancel"}, headers={"Accept": "text/html"})
    assert (reply.status_code, reply.headers["Location"]) == (303, "/teach?system=food11")
    assert ask(browser, "dance")[0] == 400


def test_behind_a_trusted_proxy_nobody_teaches_without_a_key(socket: Path) -> None:
    assert ask(client(teach_socket=socket, trusted_proxies=1), "learn")[0] == 401


@pytest.mark.parametrize(
    "headers",
    [{"X-Forwarded-For": "192.0.2.1"}, {"Forwarded": "for=192.0.2.1"}, {"X-API-Key": "another" * 4}],
)
def test_others_may_not_teach_without_a_key(socket: Path, headers: dict[str, str]) -> None:
    browser = client(teach_socket=socket, api_keys=(AN_API_KEY,))
    browser.environ_base["REMOTE_ADDR"] = "192.0.2.1" if "X-API-Key" in headers else "127.0.0.1"
    assert ask(browser, "learn", **headers)[0] == 401
    assert browser.get("/teach", headers={**JSON, **headers}).get_json()["state"] is None
    code, answer = ask(browser, "cancel", **headers | {"X-API-Key": AN_API_KEY})
    assert (code, answer["state"]["job"]) == (200, "")


def test_a_page_of_another_site_may_not_teach(browser: FlaskClient) -> None:
    code, answer = ask(browser, "learn", Origin="http://elsewhere.example")
    assert (code, answer["error"]["code"]) == (403, "cross_site")


def test_a_model_without_the_set_to_rehearse_cannot_be_taught(tmp_path: Path) -> None:
    assert teachable("food11", [tmp_path, DEFAULT_REPOSITORY]) == MODEL
    assert teachable("digits", [DEFAULT_REPOSITORY]) is None
    assert teachable("nobody", [DEFAULT_REPOSITORY]) is None


def test_a_stored_photo_is_shown_relabelled_and_removed_by_those_who_may_teach(
    browser: FlaskClient, home: Path
) -> None:
    pixels = np.arange(224 * 224 * 3, dtype=np.uint8).reshape(224, 224, 3)
    folder, name = home / "corrections" / "food11", name_of(pixels)
    keep(folder, "Rice", pixels, "Bread")
    page = browser.get("/").text
    assert "1 of your 9 labels contradict a sure answer" in page
    assert page.index(name) < page.index("/0.jpg"), "the one to look at comes first"
    address = f"/teach/food11/Rice/{name}"
    assert browser.get(address).mimetype == "image/jpeg"
    changed = {"do": "relabel", "photo": name, "label": "Noodles/Pasta"}
    about = browser.post("/teach", data=changed, headers=JSON).get_json()
    assert (about["corrections"]["Noodles/Pasta"], about["contradictions"]) == (1, 0)
    assert (folder / "Noodles-Pasta" / name).exists()
    assert ask(browser, "relabel")[0] == 400, "without a photo"
    browser.post("/teach", data={"do": "remove", "photo": name}, headers=JSON)
    assert browser.get("/teach", headers=JSON).get_json()["corrections"] == {"Rice": 8}
    others = {"X-Forwarded-For": "192.0.2.1"}
    assert browser.get("/teach/food11/Rice/0.jpg", headers=others).status_code == 404
    assert browser.get("/teach", headers={**JSON, **others}).get_json()["photos"] == []
    assert str(home) not in browser.get("/", headers=others).text


def test_no_photo_outside_the_folders_of_labels_is_sent_or_removed(browser: FlaskClient, home: Path) -> None:
    folder = home / "corrections" / "food11"
    private = [folder / "private.jpg", folder.parent / "private.jpg"]
    for path in private:
        path.write_bytes(b"mine")
    assert browser.get("/teach/food11/Rice/0.jpg").status_code == 200
    assert browser.get("/teach/food11/%2e%2e/private.jpg").status_code == 404
    for photo in ("../private.jpg", "../../private.jpg", "*"):
        changed = browser.post("/teach", data={"do": "remove", "photo": photo}, headers=JSON)
        assert changed.status_code == 400
    assert [path.read_bytes() for path in private] == [b"mine"] * 2
    assert len(list(folder.glob("Rice/*.jpg"))) == 8


def test_learning_waits_for_eight_photos(browser: FlaskClient, home: Path) -> None:
    (home / "corrections" / "food11" / "Rice" / "0.jpg").unlink()
    page = browser.get("/").text
    assert "1 more photos" in page
    assert 'value="learn" disabled' in page


def test_a_label_against_a_sure_answer_is_named_and_can_be_taken_back(tmp_path: Path) -> None:
    app, photo = client(keep_corrections=tmp_path), SYSTEM.sample()
    sure = app.post("/api/v1/classify", data=photo, content_type="image/jpeg").get_json()["results"][0]
    assert sure["sure"]
    other = next(label for label in SYSTEM.labels if label != sure["label"])
    address = f"/api/v1/corrections?label={other}"
    kept = app.post(address, data=photo, content_type="image/jpeg").get_json()
    assert kept["contradicted"]["label"] == sure["label"]
    assert [row.contradicted for row in stored(tmp_path / "food11")] == [sure["label"]]
    app.post(f"{address}&undo=1", data=photo, content_type="image/jpeg")
    assert stored(tmp_path / "food11") == []
    unsure = client(FakeClassifier(replace(EGG, threshold=0.9)), keep_corrections=tmp_path)
    assert unsure.post(address, data=photo, content_type="image/jpeg").get_json() == {"label": other}


# The page "New classifier"
@pytest.fixture
def teacher(home: Path) -> Iterator[FlaskClient]:
    teaching = Teaching([DEFAULT_REPOSITORY], home / "corrections", "127.0.0.1:9", lambda _text: None)
    with listening(teaching, "teach.sock") as socket:
        yield client(teach_socket=socket, keep_corrections=home / "corrections")


def begin(teacher: FlaskClient, title: str, *labels: str, **headers: str) -> tuple[int, str]:
    reply = teacher.post("/new", data={"title": title, "label": [*labels]}, headers={**JSON, **headers})
    body = reply.get_json()
    return reply.status_code, body.get("name") or body["error"]["message"]


@pytest.mark.parametrize(
    ("title", "labels", "message"),
    [
        ("../..", ("rose", "tulip"), "give it a name with letters"),
        ("food11", ("rose", "tulip"), "there is a classifier called food11 already"),
        ("Flowers", ("rose", "other"), "a classifier needs 2 to 200 classes"),
        ("Flowers", ("rose", "Rose "), "give each class a name of its own"),
        ("Flowers", ("rose", ""), "give each class a name of its own"),
    ],
)
def test_what_cannot_become_a_classifier_is_refused_in_a_sentence(
    teacher: FlaskClient, home: Path, title: str, labels: tuple[str, ...], message: str
) -> None:
    code, refusal = begin(teacher, title, *labels)
    assert (code, message in refusal) == (400, True), refusal
    assert not (home / "drafts").exists()


@pytest.mark.parametrize(("title", "name"), [("Crème brûlée", "creme_brulee"), ("3 птицы", "classifier_")])
def test_a_title_may_have_any_letters(teacher: FlaskClient, title: str, name: str) -> None:
    status, made = begin(teacher, title, "воробей", "синица")
    assert (status, made[: len(name)]) == (200, name)


def test_photos_are_stored_as_small_squares_without_their_names_until_the_work_ends(
    teacher: FlaskClient, home: Path, photos: list[bytes]
) -> None:
    assert begin(teacher, "My Flowers!", "../rose", "tulip", "other") == (200, "my_flowers")
    for label, content in enumerate([*photos[:3], b"no photo"]):
        sent = {"file": (io.BytesIO(content), "../../secret.jpg")}
        reply = teacher.post(f"/new/my_flowers/photos?label={label % 3}", data=sent, headers=JSON)
        assert reply.status_code == 200, reply.text
    (refused,) = reply.get_json()["refused"]
    assert "this is not a picture" in refused
    draft = home / "drafts" / "my_flowers"
    stored = [path.relative_to(draft) for path in draft.rglob("*.jpg")]
    assert {path.parent.name for path in stored} == {"-rose", "tulip", "other"}
    assert all(len(path.stem) == 32 for path in stored)
    reply = teacher.post("/new/my_flowers", data={"title": "My Flowers!"}, headers=JSON)
    assert (reply.status_code, "../rose needs 7 more photos" in reply.text) == (400, True)


def test_others_may_not_make_a_classifier_without_a_key(teacher: FlaskClient, home: Path) -> None:
    forwarded = {"X-Forwarded-For": "192.0.2.1"}
    assert begin(teacher, "Flowers", "rose", "tulip", **forwarded)[0] == 401
    assert teacher.get("/new/flowers", headers={**JSON, **forwarded}).status_code == 401
    assert 'id="make"' not in teacher.get("/new", headers=forwarded).text
    assert "New classifier" not in teacher.get("/", headers=forwarded).text
    assert "New classifier" in teacher.get("/").text
    assert not (home / "drafts").exists()


def test_a_form_that_is_longer_than_an_upload_is_not_read(home: Path) -> None:
    browser = client(teach_socket=home / "teach.sock", max_upload_mb=0.05)
    code, said = begin(browser, "Flowers", "rose", "t" * 200_000)
    assert (code, said) == (413, "the request is larger than 115 KB: send less")


@pytest.mark.parametrize(("job", "system"), [("new", "../x"), ("new", "food11"), ("delete", "food11")])
def test_no_job_begins_for_a_name_that_cannot_be_made_or_deleted(home: Path, job: str, system: str) -> None:
    notes = list[str]()
    teaching = Teaching([DEFAULT_REPOSITORY], home / "corrections", "127.0.0.1:9", notes.append)
    assert (teaching.answer({"do": job, "system": system}) or {}).get("job", "") == ""
    assert notes == []
