"""The page "New classifier" without a Triton: what it accepts, and what it stores of the photos."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from support.fake_classifier import client
from support.life import home

from gourmet.pictures.made_up import views
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack.teaching import Teaching, listening

__all__ = ["home"]  # the fixture
JSON = {"Accept": "application/json"}
DRAWING = Path(__file__).parents[1] / "drawings" / "bread.jpg"


@pytest.fixture
def browser(home: Path) -> Iterator[FlaskClient]:
    teaching = Teaching([DEFAULT_REPOSITORY], home / "corrections", "127.0.0.1:9", lambda _text: None)
    with listening(teaching, "teach.sock") as socket:
        yield client(teach_socket=socket, keep_corrections=home / "corrections")


def begin(browser: FlaskClient, title: str, *labels: str, **headers: str) -> tuple[int, str]:
    reply = browser.post("/new", data={"title": title, "label": [*labels]}, headers={**JSON, **headers})
    body = reply.get_json()
    return reply.status_code, body.get("name") or body["error"]["message"]


@pytest.mark.parametrize(
    ("title", "labels", "message"),
    [
        ("", ("rose", "tulip"), "give it a name with letters"),
        ("../..", ("rose", "tulip"), "give it a name with letters"),
        ("food11", ("rose", "tulip"), "there is a classifier called food11 already"),
        ("Flowers", ("rose",), "a classifier needs 2 to 200 classes"),
        ("Flowers", ("rose", "other"), "a classifier needs 2 to 200 classes"),
        ("Flowers", ("rose", "Rose "), "give each class a name of its own"),
        ("Flowers", ("rose", ""), "give each class a name of its own"),
    ],
)
def test_what_cannot_become_a_classifier_is_refused_in_a_sentence(
    browser: FlaskClient, home: Path, title: str, labels: tuple[str, ...], message: str
) -> None:
    code, said = begin(browser, title, *labels)
    assert code == 400
    assert message in said
    assert not (home / "drafts").exists()


@pytest.mark.parametrize(
    ("title", "name"),
    [("Crème brûlée", "creme_brulee"), ("Мои птицы", "classifier_"), ("3 птицы", "classifier_")],
)
def test_a_title_may_have_any_letters(browser: FlaskClient, title: str, name: str) -> None:
    status, made = begin(browser, title, "воробей", "синица")
    assert status == 200
    assert made.startswith(name)


def test_photos_are_stored_as_small_squares_without_their_names_until_the_work_ends(
    browser: FlaskClient, home: Path
) -> None:
    assert begin(browser, "My Flowers!", "../rose", "tulip", "other") == (200, "my_flowers")
    photos = views(DRAWING.read_bytes(), 3, size=(300, 300), seed=1)
    for label, content in enumerate([*photos, b"no photo"]):
        sent = {"file": (io.BytesIO(content), "../../secret.jpg")}
        reply = browser.post(f"/new/my_flowers/photos?label={label % 3}", data=sent, headers=JSON)
        assert reply.status_code == 200, reply.text
    (refused,) = reply.get_json()["refused"]
    assert "this is not a picture" in refused
    draft = home / "drafts" / "my_flowers"
    stored = [path.relative_to(draft) for path in draft.rglob("*.jpg")]
    assert {path.parent.name for path in stored} == {"-rose", "tulip", "other"}
    assert all(len(path.stem) == 32 for path in stored)
    reply = browser.post("/new/my_flowers", data={"title": "My Flowers!"}, headers=JSON)
    assert (reply.status_code, "../rose needs 7 more photos" in reply.text) == (400, True)


def test_others_may_not_make_a_classifier_without_a_key(browser: FlaskClient, home: Path) -> None:
    forwarded = {"X-Forwarded-For": "192.0.2.1"}
    assert begin(browser, "Flowers", "rose", "tulip", **forwarded)[0] == 401
    assert browser.get("/new/flowers", headers={**JSON, **forwarded}).status_code == 401
    assert 'id="make"' not in browser.get("/new", headers=forwarded).text
    assert "New classifier" not in browser.get("/", headers=forwarded).text
    assert "New classifier" in browser.get("/").text
    assert not (home / "drafts").exists()


@pytest.mark.parametrize(("job", "system"), [("new", "../x"), ("new", "food11"), ("delete", "food11")])
def test_no_job_begins_for_a_name_that_cannot_be_made_or_deleted(home: Path, job: str, system: str) -> None:
    said = list[str]()
    teaching = Teaching([DEFAULT_REPOSITORY], home / "corrections", "127.0.0.1:9", said.append)
    state = teaching.answer({"do": job, "system": system})
    assert (state or {}).get("job", "") == ""
    assert said == []
