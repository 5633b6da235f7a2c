"""Keys, rate limit, host names, other sites, compression and caching: who is answered, and how."""

from __future__ import annotations

import gzip
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient
from limits.strategies import MovingWindowRateLimiter
from support.fake_classifier import client, code, form

from app.web import gunicorn_conf
from app.web.settings import Rate, Settings, SettingsError
from gourmet.systems.food11 import contract

KEYS = ("k" * 20, "another-key-of-the-tests")
MODELS = "/api/v1/models"
CLASSIFY = "/api/v1/classify"


def classify(browser: FlaskClient, photos: int = 1, **options: Any) -> Any:
    return browser.post(CLASSIFY, data=form(*[contract.SYSTEM.sample()] * photos), **options)


# Keys


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("way", ["Authorization", "X-API-Key"])
def test_each_key_opens_the_api_either_way(key: str, way: str) -> None:
    headers = {way: f"Bearer {key}" if way == "Authorization" else key}
    browser = client(api_keys=KEYS)
    assert browser.get(MODELS, headers=headers).status_code == 200
    assert classify(browser, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic a2tra2s6a2tra2s="},
        {"X-API-Key": KEYS[0][:-1]},
        {"X-API-Key": ",".join(KEYS)},
        {"Cookie": "gourmet-page=page.aaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    ],
    ids=str,
)
def test_a_request_without_a_key_is_refused_with_the_header_to_send(headers: dict[str, str]) -> None:
    for reply in (client(api_keys=KEYS).get(MODELS, headers=headers), classify(client(api_keys=KEYS))):
        assert code(reply) == (401, "key_needed")
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
        assert not any(key in reply.text for key in KEYS)


def test_the_page_goes_on_working_and_its_pass_is_of_no_use_elsewhere() -> None:
    browser = client(api_keys=KEYS)
    assert browser.get(MODELS).status_code == 401
    page = browser.get("/")
    cookie = page.headers["Set-Cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/api/v1/"))
    assert "Secure" not in cookie
    assert "Secure" in browser.get("/", base_url="https://localhost").headers["Set-Cookie"]
    assert browser.get(MODELS).status_code == 200
    assert browser.get(MODELS, headers={"X-API-Key": "wrong"}).status_code == 401
    assert classify(browser).status_code == 200
    missing = client(api_keys=KEYS).get("/nowhere", headers={"Accept": "text/html"})
    assert "Set-Cookie" not in missing.headers
    other = client(api_keys=("x" * 20,))
    other.set_cookie("gourmet-page", re.findall(r"gourmet-page=([^;]+)", cookie)[0], path="/api/v1/")
    assert other.get(MODELS).status_code == 401


def test_a_pass_ends_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = client(api_keys=KEYS)
    browser.get("/")
    monkeypatch.setattr("app.web.auth._PASS_AGE_S", -1)
    assert browser.get(MODELS).status_code == 401


# The rate limit


def test_a_request_beyond_the_rate_limit_gets_retry_after() -> None:
    browser = client(rate_limit=Rate(3, 60))
    first = browser.get(MODELS)
    assert first.headers["RateLimit-Policy"] == '"default";q=3;w=60'
    assert re.fullmatch(r'"default";r=2;t=(60|[45]\d)', first.headers["RateLimit"])
    assert classify(browser, 2).status_code == 200
    reply = classify(browser)
    assert code(reply) == (429, "too_many_requests")
    assert 30 < int(reply.headers["Retry-After"]) <= 60, "when the first leaves the window"
    assert reply.headers["RateLimit"].startswith('"default";r=0')
    assert browser.get("/test", headers={"Accept": "application/json"}).status_code == 429


def test_the_window_moves_and_preflights_are_not_counted() -> None:
    browser = client(rate_limit=Rate(1, 3600), cors_origins=("https://a.example",))
    assert [browser.options(MODELS, headers=PREFLIGHT).status_code for _ in range(3)] == [200] * 3
    assert [browser.get(MODELS).status_code for _ in range(2)] == [200, 429]
    (limiter,) = browser.application.extensions["limiter"]
    assert isinstance(limiter.limiter, MovingWindowRateLimiter)


def test_a_call_s_photos_count_each() -> None:
    browser = client(rate_limit=Rate(4, 60))
    assert classify(browser, 3).status_code == 200
    assert classify(browser, 3).status_code == 429
    assert classify(client(rate_limit=Rate(4, 60)), 4).status_code == 200
    reply = classify(client(rate_limit=Rate(4, 60)), 5)
    assert code(reply) == (429, "too_many_requests")
    assert "never" in reply.get_json()["error"]["message"]
    assert "Retry-After" not in reply.headers


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/api/v1/health", "/static/style.css"])
def test_pages_and_health_need_no_key_and_are_not_counted(path: str) -> None:
    browser = client(rate_limit=Rate(1, 3600), api_keys=KEYS)
    for _ in range(3):
        with browser.get(path) as reply:
            assert reply.status_code == 200


def test_each_key_has_a_rate_limit_of_its_own() -> None:
    browser = client(rate_limit=Rate(1, 3600), api_keys=KEYS)
    for key in KEYS:
        statuses = [browser.get(MODELS, headers={"X-API-Key": key}).status_code for _ in range(2)]
        assert statuses == [200, 429]


@pytest.mark.parametrize(
    ("proxies", "forwarded", "other", "is_same"),
    [
        (0, "10.0.0.1", "10.0.0.2", True),
        (1, "1.2.3.4, 10.0.0.1", "5.6.7.8, 10.0.0.1", True),
        (1, "1.2.3.4, 10.0.0.1", "1.2.3.4, 10.0.0.2", False),
        (2, "6.6.6.6, 10.0.0.1, 172.16.0.1", "6.6.6.6, 10.0.0.2, 172.16.0.1", False),
    ],
)
def test_a_client_is_the_address_that_the_trusted_proxies_name(
    proxies: int, forwarded: str, other: str, is_same: bool
) -> None:
    browser = client(rate_limit=Rate(1, 3600), trusted_proxies=proxies)
    assert browser.get(MODELS, headers={"X-Forwarded-For": forwarded}).status_code == 200
    second = browser.get(MODELS, headers={"X-Forwarded-For": other})
    assert second.status_code == (429 if is_same else 200)


def test_an_ipv6_client_is_its_64_prefix() -> None:
    browser = client(rate_limit=Rate(1, 3600))
    for address, status in (
        ("2001:db8::1", 200),
        ("2001:db8:0:0:ffff::1", 429),
        ("2001:db8:0:1::1", 200),
        ("::ffff:192.0.2.1", 200),
        ("192.0.2.1", 429),
    ):
        reply = browser.get(MODELS, environ_overrides={"REMOTE_ADDR": address})
        assert reply.status_code == status, address


STORAGE = {"rate_limit_storage": "redis://:a-password@127.0.0.1:9/0"}


def test_without_redis_the_app_counts_locally_and_reports_how_often() -> None:
    browser = client(rate_limit=Rate(2, 3600), **STORAGE)
    assert [browser.get(MODELS).status_code for _ in range(3)] == [200, 200, 429]
    text = browser.get("/metrics").text
    assert "web_rate_limit_failures_total 3.0" in text
    assert "a-password" not in text


def test_a_shared_rate_limit_without_its_package_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(SettingsError, match=r"pip install .*-r requirements/redis\.txt"):
        client(rate_limit=Rate(2, 3600), **STORAGE)
    client(**STORAGE)  # nothing is counted, so nothing is needed


@pytest.mark.parametrize(
    "address",
    [
        *("redis.example:6379", "http://:a-password@redis.example"),
        *(f"redis://:a-password{sign}more@redis.example" for sign in "/?#@"),
    ],
)
def test_an_address_that_is_no_redis_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(SettingsError, match=r"RATE_LIMIT_STORAGE is .*give the address of a Redis") as error:
        Settings.from_env({"RATE_LIMIT": "2/h", "RATE_LIMIT_STORAGE": address})
    assert "a-password" not in str(error.value)


def test_a_redis_port_that_is_not_a_number_is_refused_without_the_password() -> None:
    with pytest.raises(SettingsError, match="RATE_LIMIT_STORAGE is not usable") as error:
        client(rate_limit=Rate(2, 3600), rate_limit_storage="redis://:a-password")
    assert "a-password" not in str(error.value)


# Hosts and other sites


@pytest.fixture(scope="module")
def named() -> FlaskClient:
    return client(trusted_hosts=("food.example", ".b.example"))


@pytest.mark.promise("README: **Another host name** goes into `TRUSTED_HOSTS`")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("FOOD.example:8080", 200),
        ("a.b.example", 200),
        ("[::1]:5000", 200),
        ("food.example.evil", 400),
        ("evilb.example", 400),
        ("evilfood.example", 400),
        ("food.example@evil", 400),
        ("", 400),
    ],
)
def test_with_trusted_hosts_other_names_are_refused(host: str, status: int, named: FlaskClient) -> None:
    reply = named.get("/healthz", headers={"Host": host, "Accept": "application/json"})
    assert reply.status_code == status
    if status == 400:
        assert code(reply) == (400, "wrong_host")


ORIGIN = {"Origin": "https://a.example"}
PREFLIGHT = {**ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}


def test_unless_origins_are_set_other_sites_get_nothing() -> None:
    for reply in (client().get(MODELS, headers=ORIGIN), client().options(CLASSIFY, headers=PREFLIGHT)):
        assert not [name for name in dict(reply.headers) if name.startswith("Access-Control")]


def test_pages_of_allowed_origins_may_call_the_api() -> None:
    browser = client(cors_origins=("https://a.example", "http://b.example:81"), api_keys=KEYS)
    preflight = browser.options(CLASSIFY, headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://a.example"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert "X-API-Key" in preflight.headers["Access-Control-Allow-Headers"]
    reply = browser.get(MODELS, headers={**ORIGIN, "X-API-Key": KEYS[0]})
    assert reply.headers["Access-Control-Allow-Origin"] == "https://a.example"
    assert "Access-Control-Allow-Credentials" not in reply.headers
    assert "Origin" in reply.headers["Vary"]
    # So that a script can read why it was refused.
    assert browser.get(MODELS, headers=ORIGIN).headers["Access-Control-Allow-Origin"]


@pytest.mark.parametrize("origin", ["https://a.example.evil", "http://a.example"])
def test_pages_of_other_origins_may_not_call_the_api(origin: str) -> None:
    browser = client(cors_origins=("https://a.example",))
    reply = browser.options(CLASSIFY, headers={**PREFLIGHT, "Origin": origin})
    assert "Access-Control-Allow-Origin" not in reply.headers
    assert "Origin" in reply.headers["Vary"]


def test_a_star_lets_every_site_ask_the_api_but_nothing_else() -> None:
    browser = client(cors_origins=("*",))
    assert browser.get(MODELS, headers=ORIGIN).headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Origin" not in browser.get("/", headers=ORIGIN).headers


# Delivery


@pytest.mark.parametrize("path", ["/", "/static/style.css"])
@pytest.mark.parametrize(
    ("accepted", "used"), [("gzip, deflate, br", "gzip"), ("br, gzip;q=0", None), ("identity", None)]
)
def test_text_is_compressed_as_the_client_likes(path: str, accepted: str, used: str | None) -> None:
    browser = client()
    with browser.get(path, headers={"Accept-Encoding": accepted}) as reply:
        assert reply.headers.get("Content-Encoding") == used
        assert "Accept-Encoding" in reply.headers["Vary"]
        data, etag = reply.data, reply.headers.get("ETag")
        assert reply.content_length == len(data)
    text = gzip.decompress(data) if used else data
    assert len(text) > 1.8 * len(data) or not used
    if etag:
        assert etag.startswith("W/") == bool(used), "other bytes than those of the tag"
        both = {"If-None-Match": etag, "Accept-Encoding": accepted}
        with browser.get(path, headers=both) as again:
            assert (again.status_code, again.data) == (304, b"")


@pytest.mark.parametrize("path", ["/sample.jpg", "/healthz"])
def test_pictures_and_short_answers_are_left_as_they_are(path: str) -> None:
    assert "Content-Encoding" not in client().get(path, headers={"Accept-Encoding": "gzip"}).headers


def test_static_files_are_kept_for_good_under_their_hash_and_asked_for_again_without() -> None:
    browser = client()
    address = re.findall(r'href="(/static/style\.css\?v=[0-9a-f]{12})"', browser.get("/").text)[0]
    with browser.get(address) as kept:
        assert "immutable" in kept.headers["Cache-Control"]
    for other in ("/static/style.css", "/static/style.css?v=000000000000"):
        with browser.get(other) as reply:
            assert reply.headers["Cache-Control"] == "no-cache"
            etag = reply.headers["ETag"]
        with browser.get(other, headers={"If-None-Match": etag}) as again:
            assert again.status_code == 304


def test_pages_are_asked_for_again_and_answers_are_not_kept() -> None:
    browser = client()
    assert browser.get("/").headers["Cache-Control"] == "no-cache"
    for path in (MODELS, "/api/v1/health"):
        assert browser.get(path).headers["Cache-Control"] == "no-store"
    answer = browser.post("/predict", data=form(), headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
    assert classify(browser).headers["Cache-Control"] == "no-store"


# Other sites and host names
JSON = {"Accept": "application/json"}
EVIL = "https://evil.example"
OTHER_PORT = {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"}
FOREIGN: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site", "Origin": EVIL},
    {"Sec-Fetch-Site": "cross-site, same-origin"},
    OTHER_PORT,
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://localhost.evil.example"},
]
OWN: list[dict[str, str]] = [
    {},
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
def test_forms_of_another_site_are_refused_and_links_work(headers: dict[str, str], tmp_path: Path) -> None:
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


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", ""])
@pytest.mark.parametrize("path", ["/api/v1/translate", "/api/v1/generate"])
def test_json_without_its_content_type_is_refused(path: str, kind: str) -> None:
    """Other sites' pages may send the other types without asking first."""
    reply = client().post(path, data=b'{"text": "x"}', content_type=kind, headers=JSON)
    assert code(reply) == (415, "unsupported_media_type")
    assert "send application/json" in reply.json["error"]["message"]


# Names


@pytest.mark.parametrize(
    ("host", "listens_at", "is_own"),
    [
        ("LOCALHOST:5000", "127.0.0.1", True),
        ("127.7.7.7", "0.0.0.0", True),
        ("[::1]:5000", "127.0.0.1", True),
        ("192.0.2.7:5000", "192.0.2.7", True),
        ("192.0.2.7", "::", True),
        ("[2001:db8::7]", "2001:0db8::7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("evil.example:5000", "0.0.0.0", False),
        ("evil.example", "evil.example", False),  # at a Unix socket gunicorn takes that from the request
        ("localhost.evil.example", "0.0.0.0", False),
        ("evil.example@localhost", "0.0.0.0", False),
        ("", "0.0.0.0", False),
    ],
)
def test_only_own_names_are_answered(host: str, listens_at: str, is_own: bool, browser: FlaskClient) -> None:
    environ = {"SERVER_NAME": listens_at, "HTTP_HOST": host}
    for path in ("/", "/api/v1/models"):
        with browser.get(path, headers=JSON, environ_overrides=environ) as reply:
            assert (reply.status_code != 400) == is_own
            if not is_own:
                assert code(reply) == (400, "wrong_host")


def test_the_refusal_of_a_host_names_the_setting() -> None:
    asked = {"Host": "food.example:5000"}
    message = client().get("/", headers=JSON | asked).json["error"]["message"]
    assert "ask for it as localhost, or start it with TRUSTED_HOSTS=food.example" in message
    assert client(trusted_hosts=("food.example",)).get("/", headers=asked).status_code == 200


@pytest.mark.parametrize(
    ("addresses", "given", "then", "is_warned"),
    [
        ([("localhost", 5000), "/run/web.sock"], "", "localhost", False),
        ([("0.0.0.0", 5000)], "", "", True),
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
