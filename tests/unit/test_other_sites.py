"""A page of another site changes and asks nothing here, under its own name or this app's."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.fake_classifier import client, code, form

from app.web import gunicorn_conf
from app.web.settings import Settings

JSON = {"Accept": "application/json"}
EVIL = "https://evil.example"
OTHER_PORT = {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"}
FOREIGN: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": EVIL},
    {"Sec-Fetch-Site": "cross-site, same-origin"},
    {"Sec-Fetch-Site": "what?"},
    OTHER_PORT,
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "localhost"},
    {"Origin": "ftp://localhost"},
    {"Origin": f"http://localhost, {EVIL}"},
]
OWN: list[dict[str, str]] = [
    {},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://food.example"},  # a proxy may change the Host
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://localhost"},
    {"Origin": "https://localhost"},  # TLS ends at a proxy
]


def post(browser: FlaskClient, path: str, headers: dict[str, str]) -> Any:
    return browser.post(path, data=form(), headers=JSON | headers)


@pytest.fixture(scope="module")
def browser() -> FlaskClient:
    return client()


@pytest.mark.promise("SECURITY 11")
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_forms_of_another_site_are_refused_and_its_links_work(
    headers: dict[str, str], tmp_path: Path
) -> None:
    browser = client(keep_corrections=tmp_path)
    forms = "/predict", "/translate", "/api/v1/corrections?label=Egg", "/x"
    for path in (*forms, "/api/v1/classify", "/api/v1/generate"):
        assert code(post(browser, path, headers)) == (403, "cross_site"), path
    assert not list(tmp_path.iterdir())
    for method in ("PUT", "DELETE", "STRANGE"):
        assert browser.open("/predict", method=method, headers=JSON | headers).status_code == 403
    assert browser.get("/", headers=headers).status_code == 200
    assert browser.options("/api/v1/classify", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_the_app_s_own_pages_and_programs_are_answered(headers: dict[str, str], browser: FlaskClient) -> None:
    assert post(browser, "/predict", headers).status_code == 200
    assert post(browser, "/api/v1/classify", headers).status_code == 200


@pytest.mark.parametrize("origins", [(EVIL,), ("*",)])
def test_the_origins_that_are_set_may_use_the_api_and_send_no_forms(origins: tuple[str, ...]) -> None:
    browser = client(cors_origins=origins)
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": EVIL}
    reply = post(browser, "/api/v1/classify", headers)
    assert reply.status_code == 200
    assert reply.headers["Access-Control-Allow-Origin"] in ("*", EVIL)
    assert post(browser, "/predict", headers).status_code == 403
    assert post(browser, "/api/v1/classify", OTHER_PORT).status_code == (200 if "*" in origins else 403)


def test_the_page_s_own_form_sends_its_origin() -> None:
    """Under `no-referrer` a browser gives a form the origin `null`, which could be anybody's."""
    assert client().get("/").headers["Referrer-Policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/api/v1/translate", "/api/v1/generate"])
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_json_without_its_content_type_is_refused(path: str, kind: str) -> None:
    """Other sites' pages may send the other types without asking first."""
    reply = client().post(path, data=b'{"text": "x"}', content_type=kind, headers=JSON)
    assert code(reply) == (415, "unsupported_media_type")
    assert "send application/json" in reply.json["error"]["message"]


# Names


@pytest.mark.parametrize(
    ("host", "listens_at", "is_own"),
    [
        ("localhost", "127.0.0.1", True),
        ("LOCALHOST:5000", "127.0.0.1", True),
        ("127.0.0.1:5000", "127.0.0.1", True),
        ("127.7.7.7", "0.0.0.0", True),
        ("[::1]:5000", "127.0.0.1", True),
        ("192.0.2.7:5000", "192.0.2.7", True),
        ("192.0.2.7:5000", "0.0.0.0", True),
        ("192.0.2.7", "::", True),
        ("[2001:db8::7]", "2001:0db8::7", True),
        ("192.0.2.7", "127.0.0.1", False),
        ("192.0.2.7", "192.0.2.8", False),
        ("0.0.0.0", "127.0.0.1", False),
        ("evil.example", "127.0.0.1", False),
        ("evil.example:5000", "0.0.0.0", False),
        ("evil.example", "evil.example", False),  # at a Unix socket gunicorn takes that from the request
        ("localhost.evil.example", "0.0.0.0", False),
        ("127.0.0.1.evil.example", "0.0.0.0", False),
        ("evil.example@localhost", "0.0.0.0", False),
        ("localhost evil.example", "0.0.0.0", False),
        ("x" * 5000, "0.0.0.0", False),
        ("", "0.0.0.0", False),
    ],
)
def test_only_its_own_names_are_answered(
    host: str, listens_at: str, is_own: bool, browser: FlaskClient
) -> None:
    environ = {"SERVER_NAME": listens_at, "HTTP_HOST": host}
    for path in ("/", "/api/v1/models"):
        with browser.get(path, headers=JSON, environ_overrides=environ) as reply:
            assert (reply.status_code != 400) == is_own
            if not is_own:
                assert code(reply) == (400, "wrong_host")


def test_the_refusal_of_a_host_names_the_setting() -> None:
    reply = client().get("/", headers=JSON | {"Host": "food.example:5000"})
    assert (
        "ask for it as localhost, or start it with TRUSTED_HOSTS=food.example"
        in reply.json["error"]["message"]
    )
    assert (
        client(trusted_hosts=("food.example",)).get("/", headers={"Host": "food.example:5000"}).status_code
        == 200
    )


@pytest.mark.parametrize(
    ("addresses", "given", "then", "is_warned"),
    [
        ([("127.0.0.1", 5000)], "", "", False),
        ([("localhost", 5000), "/run/web.sock"], "", "localhost", False),
        ([("0.0.0.0", 5000)], "", "", True),
        ([("::", 5000)], "", "", True),
        ([("box.example", 5000)], "", "box.example", True),
        ([("0.0.0.0", 5000)], "food.example", "food.example", False),
        ([("box.example", 5000)], "food.example", "food.example,box.example", False),
    ],
)
def test_trusted_hosts_gain_the_listening_address_and_missing_names_are_requested(
    addresses: Any, given: str, then: str, is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUSTED_HOSTS", given)
    lines: list[str] = []
    log = SimpleNamespace(warning=lambda text, *values: lines.append(text % values))
    gunicorn_conf.name_hosts(SimpleNamespace(cfg=SimpleNamespace(address=addresses), log=log))
    assert Settings.from_env(os.environ).trusted_hosts == tuple(filter(None, then.split(",")))
    assert [("TRUSTED_HOSTS" in text) for text in lines] == [True] * is_warned
