"""Routes and their answers, the pages in Russian, and the lab's page; a fake classifier answers."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from support.fake_classifier import EGG, FakeClassifier, client, form
from support.listener import Listen
from werkzeug.test import TestResponse

from app import create_app
from app.models import Prediction
from app.pages import lab
from app.pages.food import SAMPLES, SYSTEM
from app.web.errors import STATUSES, ServingError
from app.web.messages import ENGLISH, NAMES, PROBLEMS, TEXTS, TRANSLATIONS, VERDICTS, warning
from app.web.settings import Rate, Settings, SettingsError
from gourmet.contracts import BadAnswer
from gourmet.pictures.certainty import RankedLabels
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.systems.food11 import contract
from gourmet.systems.registry import load_all
from gourmet.systems.translator.texts import warning as warning_of
from gourmet.triton_client import errors
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.statistics import ModelStatistics
from gourmet.triton_client.triton import Triton

PAGE = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
JSON = {"Accept": "application/json"}
SCRIPT = {"X-Requested-With": "fetch"}


def post(browser: FlaskClient, data: bytes | None = None, **headers: str) -> TestResponse:
    return browser.post("/predict", data=form() if data is None else form(data), headers=headers)


def test_the_page_has_no_inline_scripts_or_styles_which_its_policy_forbids() -> None:
    browser = client()
    for reply in (browser.get("/", headers=PAGE), post(browser, **PAGE), browser.get("/none", headers=PAGE)):
        # A block of JSON is data, which no policy keeps from being there.
        text = reply.text.replace('<script type="application/json"', "<data")
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)
        for address in re.findall(r'(?:src|href)="([^"#]+)', reply.text):
            with browser.get(address) as linked:
                assert linked.status_code == 200, address


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"Accept": "*/*"}, "json"),
        (SCRIPT | PAGE, "fragment"),
        (PAGE, "page"),
        ({"Accept": "text/html;q=0.5, application/json;q=0.9"}, "json"),
    ],
)
@pytest.mark.parametrize("outcome", [EGG, ServingError("triton_unavailable", "away")])
def test_the_answer_has_the_form_that_the_client_prefers(
    headers: dict[str, str], kind: str, outcome: Prediction | Exception
) -> None:
    reply = post(client(outcome), **headers)
    assert (reply.mimetype == "application/json") == (kind == "json")
    assert ("<html" in reply.text) == (kind == "page")
    assert "Accept" in reply.headers["Vary"]


def test_an_answer_is_sure_only_of_a_calibrated_model_and_above_the_threshold() -> None:
    browser = client(replace(EGG, threshold=0.0))
    answer = post(browser, **JSON).get_json()
    assert (answer["sure"], answer["calibrated"]) == (False, False)
    assert "Not calibrated" in post(browser, **PAGE).text
    assert "calibrated" not in post(client(), **JSON).get_json()
    doubtful = client(replace(EGG, threshold=0.9))
    assert "not sure" in post(doubtful, **SCRIPT).text
    assert post(doubtful, **JSON).get_json()["sure"] is False


def test_photos_that_a_browser_cannot_show_and_samples_are_shown() -> None:
    browser = client()
    shown = browser.post("/thumbnail", data=form(contract.SYSTEM.sample()))
    assert (shown.status_code, shown.mimetype) == (200, "image/jpeg")
    assert browser.post("/thumbnail", data=form(b"no photo"), headers=JSON).status_code == 400
    assert browser.get("/caption/sample.jpg").mimetype == "image/jpeg"


FAULTS = [
    (BadAnswer("x"), 502, "inference_failed", None),
    (errors.TritonUnreachable.at("127.0.0.1:9", "refused"), 503, "triton_unavailable", "2"),
    (errors.ModelUnavailable("m", ["a", "b"], "", "not found", 404), 503, "model_not_ready", "2"),
    (errors.ModelBusy("x", 503), 503, "triton_busy", "2"),
    (errors.NoAnswerInTime(3), 504, "triton_too_slow", None),
    (errors.NobodyWaits("the client disconnected"), 499, "client_left", None),
    (DecodersBusy(), 503, "overloaded", "2"),
    (PictureError("animated", "x"), 415, "animated", None),
    (PictureError("too_many_pixels", "x"), 413, "too_many_pixels", None),
    (PictureError("too_slow", "x"), 504, "too_slow", None),
    (ServingError("corrections_full", "x"), 507, "corrections_full", None),
    (RuntimeError("a secret"), 500, "internal", None),
]


@pytest.mark.parametrize(("fault", "status", "code", "retry"), FAULTS, ids=lambda value: str(value)[:20])
def test_every_fault_has_its_status_code_and_words_in_both_forms(
    fault: Exception, status: int, code: str, retry: str | None
) -> None:
    browser = client(fault)
    reply, page = post(browser, **JSON), post(browser, **SCRIPT)
    error = reply.get_json()["error"]
    assert set(error) == {"code", "message", "request_id"}
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == reply.headers["X-Request-ID"]
    assert f'data-code="{code}"' in page.text
    for answer in (reply, page):
        assert (answer.status_code, answer.headers.get("Retry-After")) == (status, retry)
        assert "secret" not in answer.text


def test_an_error_message_is_escaped_on_the_page() -> None:
    reply = post(client(ServingError("inference_failed", "<script>alert(1)</script>")), **SCRIPT)
    assert "<script>" not in reply.text
    assert "&lt;script&gt;" in reply.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/no-such-page", 404, "not_found"),
        ("DELETE", "/", 405, "method_not_allowed"),
        ("GET", "/static/../app.py", 404, "not_found"),
    ],
)
def test_flask_s_own_errors_look_like_ours(method: str, path: str, status: int, code: str) -> None:
    reply = client().open(path, method=method, headers=JSON)
    assert (reply.status_code, reply.get_json()["error"]["code"]) == (status, code)
    assert ("Allow" in reply.headers) == (status == 405)
    page = client().open(path, method=method, headers=PAGE)
    assert (page.status_code, "<html" in page.text) == (status, True)


@pytest.mark.parametrize("given", ["", "a b", "f" * 65, "ä"])
def test_a_bad_request_id_is_replaced(given: str) -> None:
    reply = client().get("/healthz", headers={"X-Request-ID": given})
    assert re.fullmatch(r"[0-9a-f]{32}", reply.headers["X-Request-ID"])


@pytest.mark.parametrize("path", ["/", "/test", "/nothing", "/static/style.css"])
def test_every_answer_carries_the_security_headers(path: str) -> None:
    with client().get(path) as reply:
        headers = reply.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for rule in ("script-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"):
        assert f"{rule};" in f"{policy};"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    # Under `no-referrer` a browser gives the page's own form the origin `null`, which any site can send.
    assert headers["Referrer-Policy"] == "same-origin"
    assert "payment=()" in headers["Permissions-Policy"]
    assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_ready_asks_each_model_its_sample_at_most_once_a_second() -> None:
    fake = FakeClassifier()
    browser = client(fake)
    replies = [browser.get("/readyz") for _ in range(5)]
    assert {reply.status_code for reply in replies} == {200}
    ready = replies[0].get_json()
    assert ready.pop("systems")["food11"] == ready
    assert ready == {"ready": True, "model": {"name": "food_classifier", "version": "3"}}
    samples = [system.sample() for system in load_all().values() if isinstance(system, PictureClassifier)]
    assert sorted(fake.asked) == sorted(samples)


@pytest.mark.parametrize(("fault", "status", "code", "retry"), FAULTS[:5], ids=lambda value: str(value)[:20])
def test_not_ready_is_503_whatever_the_reason(fault: Exception, status: int, code: str, retry: str) -> None:
    reply = client(fault).get("/readyz")
    reply = client(fault).get("/readyz")
    assert (reply.status_code, reply.get_json()["ready"]) == (503, False)
    assert reply.get_json()["error"]["code"] == code
    assert reply.headers["Retry-After"]


def test_metrics_count_requests_photos_and_phases() -> None:
    browser = client()
    post(browser)
    post(browser, b"text")
    text = browser.get("/metrics").text
    assert 'web_requests_total{method="POST",route="/predict",status="200"} 1.0' in text
    assert 'web_requests_total{method="POST",route="/predict",status="400"} 1.0' in text
    assert 'food_predictions_total{label="Egg",model="food_classifier"} 1.0' in text
    assert 'food_phase_seconds_count{phase="triton"} 1.0' in text
    browser.get("/some/unknown/address")
    assert 'route="unknown"' in browser.get("/metrics").text


# The pages in Russian
RUSSIAN = {"Accept-Language": "ru-RU,ru;q=0.9,en;q=0.5", "Accept": "text/html"}
# Pages for engineers are English, and so is what is the same in each language.
ENGLISH_ALONE = re.compile(
    r"lab\.|api\.|site\.name|nav\.api|translate\.placeholder|js\.(shared_by|phase_triton)"
)


@pytest.fixture(scope="module")
def app() -> Flask:
    return create_app(Settings(triton_url="127.0.0.1:9"))


@pytest.fixture
def browser(app: Flask) -> FlaskClient:
    return app.test_client()


def placeholders(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)


@pytest.mark.parametrize("language", [language for language in TRANSLATIONS if language != ENGLISH])
def test_a_language_has_every_text_with_its_placeholders(language: str) -> None:
    pairs: list[tuple[Mapping[str, str], Mapping[str, str]]] = [
        (TEXTS, TRANSLATIONS[language]),
        (VERDICTS[ENGLISH], VERDICTS[language]),
    ]
    for english, translated in pairs:
        assert english.keys() == translated.keys()
        for text_id, text in english.items():
            assert placeholders(text) == placeholders(translated[text_id]), text_id
            if not ENGLISH_ALONE.match(text_id) and re.search(r"[a-z]{3}", re.sub(r"\{\w+\}", "", text)):
                assert re.search("[а-я]", translated[text_id].lower()), f"{text_id} is not translated"
    assert STATUSES.keys() <= PROBLEMS[language].keys()
    dishes = {dish.name for dish in SYSTEM.dishes if dish.name}
    samples = {path.stem.split("_")[1].replace("-", " ").capitalize() for path in SAMPLES.glob("*.jpg")}
    assert {*SYSTEM.labels, SYSTEM.subject, *dishes, *samples} <= NAMES[language].keys()


def test_the_browser_s_language_is_taken_and_a_visitor_may_choose_another(browser: FlaskClient) -> None:
    page = browser.get("/", headers=RUSSIAN)
    assert '<html lang="ru">' in page.text
    assert ">Что на тарелке?<" in page.text
    assert {"Accept-Language", "Cookie"} <= set(page.vary)
    (link,) = re.findall(r'href="(\S*language=en)"', page.text)
    assert '<html lang="en">' in browser.get(link, headers=RUSSIAN).text
    assert '<html lang="en">' in browser.get("/", headers=RUSSIAN).text, "the choice is kept"
    assert '<html lang="ru">' in browser.get("/?language=ru", headers={"Accept": "text/html"}).text
    assert '<html lang="ru">' in browser.get("/?language=xx", headers={"Accept": "text/html"}).text
    page = browser.get("/?endpoint=x&_scheme=javascript&language=ru", headers=RUSSIAN).text
    assert 'href="/?endpoint=x&amp;_scheme=javascript&amp;language=en"' in page


def test_no_english_is_left_on_the_page_of_food(browser: FlaskClient) -> None:
    page = browser.get("/", headers=RUSSIAN).text
    shown = re.sub(r"(?s)<head>.*</head>|<script.*?</script>|<code>.*?</code>|<[^>]*>", " ", page)
    words = set(re.findall(r"[A-Za-z]{3,}", shown))
    # Names: of the product, its model, formats, and the photos' authors.
    names = "GourmetGram food classifier API JPEG PNG WebP GIF BMP TIFF AVIF HEIC CSV JSON"
    assert not words - {*names.split(), "Keith", "Jay", "The", "Company", "English"}


@pytest.mark.parametrize("path", ["/", "/compare", "/digits", "/translate", "/caption", "/new"])
def test_each_page_has_a_russian_heading_and_no_part_of_the_program(browser: FlaskClient, path: str) -> None:
    page = browser.get(path, headers=RUSSIAN).text
    assert re.search("(?s)<h1>[^<]*[а-я]", page)
    assert "&lt;function" not in page


@pytest.mark.parametrize(
    ("text", "translation", "said"),
    [
        ("Hello", "Hello", "не похож на русский"),
        ("Їжа", "Food", "в русском нет букв ї:"),
        ("ЭТО СУП", "This is soup", "прописными буквами"),
        ("В 5 часов", "At noon", "в переводе нет или записано иначе: 5"),
        ("Суп", "⁇", "⁇ стоит вместо знака"),
    ],
)
def test_what_is_doubtful_about_a_translation_is_said_in_russian(
    app: Flask, text: str, translation: str, said: str
) -> None:
    with app.test_request_context("/translate", headers=RUSSIAN):
        warned = warning(warning_of(text, translation))
    assert said in warned
    assert not re.search("[a-z]{3}", warned)


def test_programs_get_english_and_the_page_s_script_the_language_of_the_page(browser: FlaskClient) -> None:
    for address in ("/api/v1/health", "/api/v1/models"):
        program = browser.get(address, headers={"Accept-Language": "ru"}).text
        assert not re.search("[а-я]", program), program
    script = {"Accept-Language": "ru", "Accept": "application/json", "X-Requested-With": "fetch"}
    error = browser.get("/api/v1/models", headers=script).json["error"]
    assert error == {**error, "code": "triton_unavailable", "message": PROBLEMS["ru"]["triton_unavailable"]}
    health = browser.get("/api/v1/health", headers=script).json
    assert health["message"] == PROBLEMS["ru"]["triton_unavailable"]
    page = browser.get("/nowhere", headers=RUSSIAN).text
    assert "<h1>Страница не найдена</h1>" in page
    assert PROBLEMS["ru"]["not_found"] in page


@pytest.mark.parametrize(
    ("probabilities", "relevance", "text", "hint"),
    [
        ((0.0, 0.9, 0.1), None, "Молочные продукты", ""),
        ((0.5, 0.45, 0.05), None, "Хлеб или Молочные продукты", "Вместе на эти два"),
        ((0.5, 0.2, 0.3), None, "Хлеб", "Меньше 80%"),
        ((0.9, 0.1, 0.0), 0.1, "Похоже, это не еда", "Если это еда, ближе всего класс «Хлеб»."),
        ((0.9, 0.1, 0.0), 0.6, "Трудно сказать, еда ли это", "Если это еда, ближе всего класс «Хлеб»."),
    ],
)
def test_an_answer_is_said_in_russian(
    probabilities: tuple[float, ...], relevance: float | None, text: str, hint: str
) -> None:
    answer = RankedLabels(SYSTEM, SYSTEM.labels[:3], probabilities, 0.8, relevance, 0.5)
    said = answer.say(VERDICTS["ru"], NAMES["ru"])
    assert said.text == text
    assert hint in said.hint
    assert not re.search("[a-z]", said.text + said.word + said.hint)


# The lab's page
COUNTED = ModelStatistics(
    name="m",
    version="2",
    requests=30,
    failures=1,
    rows=60,
    executions=20,
    queue_ns=6_000_000,
    input_ns=1_000_000,
    infer_ns=58_000_000,
    output_ns=1_000_000,
    executions_by_batch={4: 10, 2: 10},
)
NEVER_ASKED = ModelStatistics("idle", "1")


def lab_client(**settings: Any) -> FlaskClient:
    """The app with nobody at Triton's address."""
    address = {"triton_url": "127.0.0.1:1", "connect_timeout_s": 0.5}
    return create_app(Settings(**address | settings)).test_client()


def counting(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> FlaskClient:
    """The app whose Triton counted each of `answers` in turn, and nothing after the last."""
    left = list(answers)

    def ask(_: Triton, model: str, deadline: Deadline) -> list[ModelStatistics]:
        assert deadline.seconds <= 2
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    monkeypatch.setattr(lab, "_AGE_S", 60)
    monkeypatch.setattr(Triton, "statistics", ask)
    return lab_client()


def test_lab_figures_have_all_models_by_name_and_are_cached_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = counting(monkeypatch, [COUNTED, NEVER_ASKED])
    body = browser.get("/lab/figures").get_json()
    assert browser.get("/lab/figures").get_json() == body
    assert [model["name"] for model in body["models"]] == ["idle", "m"]
    assert body["models"][1] == {
        **{"name": "m", "version": "2", "requests": 30, "failures": 1, "rows": 60, "executions": 20},
        **{"queue_ms": 6.0, "compute_ms": 60.0},
        "batches": [{"rows": 2, "executions": 10}, {"rows": 4, "executions": 10}],
    }


METRICS = b"""# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
nv_cpu_utilization 0.25
nv_cpu_memory_total_bytes 24000000000
nv_cpu_memory_used_bytes 6000000000
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-a"} 1
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 80000000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 20000000000
nv_inference_count{model="m",version="1"} 7
"""


def test_the_lab_shows_the_load_of_the_machine_and_the_configs_where_known(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(METRICS) + METRICS
    url = f"http://{listen({'/metrics': metrics}).url}/metrics"
    monkeypatch.setattr(Triton, "statistics", lambda *_: [COUNTED])
    config = {"max_batch_size": 8, "instance_group": [{"kind": "KIND_CPU", "count": 1}]}
    monkeypatch.setattr(Triton, "config", lambda *_: config)
    monkeypatch.setattr(lab, "_METRICS_WITHIN_S", 30.0)
    browser = lab_client(triton_metrics_url=url)
    body = browser.get("/lab/figures").get_json()
    assert body["machine"] == [
        "CPU: 25% busy, 6.00 of 24.0 GB of memory in use",
        "GPU 0: 100% busy, 20.0 of 80.0 GB of memory in use",
        "GPU 1: 50% busy",
    ]
    summary = "1 instance on the CPU; batches of up to 8 rows; no dynamic batching"
    assert body["configs"] == {"m": summary}
    assert f"<dd>{summary}</dd>" in browser.get("/lab").text
    assert browser.get("/lab/sample").data[:2] == b"\xff\xd8"
    for nowhere in ("", "http://127.0.0.1:1/metrics"):
        assert lab_client(triton_metrics_url=nowhere).get("/lab/figures").get_json()["machine"] == []


def test_the_lab_table_has_means_and_a_dash_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    text = counting(monkeypatch, [COUNTED, NEVER_ASKED]).get("/lab").text
    idle, counted = re.findall(r'<tr><th scope="row">.*?</tr>', text, re.S)
    assert re.findall("<td>(.*?)</td>", counted) == ["30", "1", "60", "20", "3.00", "0.20", "2.00"]
    assert re.findall("<td>(.*?)</td>", idle) == ["0", "0", "0", "0", "–", "–", "–"]
    figures = [lab.figure(value) for value in (0, 1.234, 12.34, 123.4, 1257.4)]
    assert figures == ["0", "1.23", "12.3", "123", "1257"]


@pytest.mark.parametrize("guarded", [False, True], ids=["open", "keys and a rate"])
def test_the_lab_page_reports_that_triton_is_away(guarded: bool) -> None:
    settings = {"api_keys": ("k" * 16,), "rate_limit": Rate(1, 3600)} if guarded else {}
    browser = lab_client(**settings)
    for _ in range(3):  # neither an API that takes a key nor photos that are counted
        page = browser.get("/lab")
        assert page.status_code == 200
        now = browser.get("/lab/figures", headers={"Accept": "application/json"})
        assert (now.status_code, now.get_json()["error"]["code"]) == (503, "triton_unavailable")
        assert "RateLimit" not in now.headers
    assert "Live figures are unavailable" in page.text
    assert "no Triton answers at 127.0.0.1:1" in page.text
    assert "gourmet bench run food_classifier" in page.text


def test_the_lab_can_be_turned_off() -> None:
    browser = lab_client(lab_page="off")
    for address in ("/lab", "/lab/figures"):
        assert browser.get(address).status_code == 404
    assert 'href="/lab"' not in browser.get("/compare").text
    assert 'href="/lab"' in lab_client().get("/compare").text
    with pytest.raises(SettingsError, match="LAB_PAGE is 'no': input should be 'on' or 'off'"):
        Settings.from_env({"LAB_PAGE": "no"})
