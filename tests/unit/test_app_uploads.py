"""Uploads: what is read, how much of it and for how long, and how the refusals are worded."""

from __future__ import annotations

import io
import tempfile
import time
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.fake_classifier import FakeClassifier, client, code, form

from app.models import Prediction
from gourmet.systems.food11 import contract
from gourmet.triton_client.deadline import Deadline

JSON = {"Accept": "application/json"}
BOUNDARY = "b0undary"


def part(data: bytes, disposition: str = 'name="file"; filename="x.jpg"') -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + data + b"\r\n"


def send(browser: FlaskClient, body: bytes, path: str = "/predict", **options: Any) -> Any:
    content_type = f"multipart/form-data; boundary={BOUNDARY}"
    return browser.post(
        path,
        input_stream=Counting(body),
        content_type=content_type,
        headers=JSON,
        content_length=len(body),
        **options,
    )


class Counting(io.BytesIO):
    """Knows how much of it was read."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        self.taken += len(chunk)
        return chunk


@pytest.mark.parametrize(
    "body",
    [
        b"",
        f"--{BOUNDARY}--\r\n".encode(),
        part(contract.SYSTEM.sample(), 'name="other"; filename="x.jpg"') + f"--{BOUNDARY}--\r\n".encode(),
        part(b"", 'name="file"; filename=""') + f"--{BOUNDARY}--\r\n".encode(),
        part(b"some text", 'name="file"') + f"--{BOUNDARY}--\r\n".encode(),
        b"no boundary at all",
    ],
    ids=["nothing", "no parts", "another field", "none chosen", "text field", "not multipart"],
)
def test_a_form_without_a_photo_says_so(body: bytes) -> None:
    assert code(send(client(), body)) == (400, "no_file")


def test_a_body_of_another_type_is_refused_with_the_expected_types() -> None:
    reply = client().post("/predict", data=contract.SYSTEM.sample(), content_type="image/jpeg", headers=JSON)
    assert code(reply) == (400, "no_file")
    assert "`file`" in reply.get_json()["error"]["message"]


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "x.php", "photo.svg", "a" * 3000, 'q";x="y.png', "фото.jpg"]
)
def test_the_name_of_a_file_does_not_matter(name: str) -> None:
    assert client().post("/predict", data=form(name=name), headers=JSON).status_code == 200


def test_the_claimed_type_of_a_file_does_not_matter() -> None:
    data = {"file": (io.BytesIO(contract.SYSTEM.sample()), "x", "text/html")}
    assert client().post("/predict", data=data, headers=JSON).status_code == 200
    data = {"file": (io.BytesIO(b"<svg/>"), "x.jpg", "image/jpeg")}
    assert code(client().post("/predict", data=data, headers=JSON)) == (415, "unsupported_format")


def test_the_cap_is_exact_and_named() -> None:
    browser = client(max_upload_mb=0.06)
    photo = contract.SYSTEM.sample()
    exact = photo + b"\0" * (60_000 - len(photo))
    end = f"--{BOUNDARY}--\r\n".encode()
    assert send(browser, part(exact) + end).status_code == 200
    reply = send(browser, part(exact + b"\0") + end)
    assert code(reply) == (413, "upload_too_large")
    assert "0.06 MB" in reply.get_json()["error"]["message"]


@pytest.mark.promise("SECURITY 3")
@pytest.mark.parametrize("terminated", [False, True], ids=["with a length", "chunked"])
def test_a_body_far_above_the_cap_is_refused_without_being_kept(terminated: bool) -> None:
    body = Counting(part(b"\xff" * 80_000_000))
    environ = {"wsgi.input_terminated": True} if terminated else {"CONTENT_LENGTH": str(len(body.getvalue()))}
    reply = client(max_upload_mb=1).post(
        "/predict",
        input_stream=body,
        content_type=f"multipart/form-data; boundary={BOUNDARY}",
        headers=JSON,
        environ_overrides=environ,
    )
    assert code(reply) == (413, "upload_too_large")
    assert body.taken < 60_000_000  # some is read and dropped, so that the client sees the answer


@pytest.mark.promise("SECURITY 9")
def test_an_upload_is_never_written_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", refuse)
    photo = contract.SYSTEM.sample() + b"\0" * 5_000_000
    assert send(client(), part(photo) + f"--{BOUNDARY}--\r\n".encode()).status_code == 200


@pytest.mark.parametrize(
    "end",
    [b"", b"\r\n", f"\r\n--{BOUNDARY}".encode(), f"\r\n--{BOUNDARY}-".encode(), f"\n--{BOUNDARY}--".encode()],
    ids=["none", "a line's", "half a boundary", "one dash", "another line end"],
)
def test_a_form_without_its_end_is_refused(end: bytes) -> None:
    assert code(send(client(), part(contract.SYSTEM.sample())[:-2] + end)) == (400, "no_file")


def test_a_boundary_inside_a_photo_stays_in_the_photo() -> None:
    fake = FakeClassifier()
    for cut in (f"--{BOUNDARY}", f"\n--{BOUNDARY}--\r\n", f"\r\n--{BOUNDARY[:-1]}", "\r\n--", "\r"):
        photo = contract.SYSTEM.sample() + cut.encode() * 20_000
        assert send(client(fake), part(photo) + f"--{BOUNDARY}--\r\n".encode()).status_code == 200
        assert fake.asked[-1] == photo


@pytest.mark.parametrize(
    "parts",
    [part(b"text", 'name="model"') * 33, part(b"x" * 500_001, 'name="model"')],
    ids=["too many parts", "too long a text"],
)
@pytest.mark.parametrize("path", ["/predict", "/api/v1/classify"])
def test_a_form_of_more_than_its_photos_and_a_few_words_is_refused(path: str, parts: bytes) -> None:
    body = parts + part(contract.SYSTEM.sample()) + f"--{BOUNDARY}--\r\n".encode()
    assert code(send(client(), body, path)) == (413, "upload_too_large")


def test_the_time_of_a_slow_upload_is_not_taken_from_the_answer() -> None:
    class Slow(Counting):
        def readinto(self, buffer: Any) -> int:
            if not self.tell():
                time.sleep(1)
            return super().readinto(buffer)

    class Noting(FakeClassifier):
        left_s = 0.0

        def classify(self, photo: bytes, deadline: Deadline, *words: Any, **options: Any) -> Prediction:
            self.left_s = max(self.left_s, deadline.left_s())
            return super().classify(photo, deadline, *words, **options)

    noting = Noting()
    body = part(contract.SYSTEM.sample()) + f"--{BOUNDARY}--\r\n".encode()
    reply = client(noting, request_deadline_s=3.0).post(
        "/predict",
        input_stream=Slow(body),
        content_type=f"multipart/form-data; boundary={BOUNDARY}",
        headers=JSON,
        content_length=len(body),
    )
    assert reply.status_code == 200
    assert reply.get_json()["timings_ms"]["receive"] >= 1000
    assert noting.left_s > 2.1
