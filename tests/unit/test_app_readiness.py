"""What the app knows of its models without any page waiting for one, and what a broken sample changes."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from support.eventually import eventually
from support.fake_classifier import EGG, FakeClassifier, client, knowing
from support.flowers import write_flowers
from support.listener import Listen, answered, http, ready, serving, tensor

from app import create_app, services
from app.api.schemas import HealthModel
from app.models import Prediction
from app.web.errors import ServingError
from app.web.settings import Settings
from gourmet.contracts import ModelInfo
from gourmet.systems import registry
from gourmet.systems.digits.contract import SYSTEM as DIGITS
from gourmet.systems.food11.contract import SYSTEM as FOOD
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.triton import BadSample, Triton, ask_sample

DIGIT = Prediction(DIGITS, DIGITS.labels, (1.0, *[0.0] * 9), model="digits", version="1")
PAGES = ("/", "/compare", "/digits", "/translate", "/caption", "/lab", "/api/docs", "/nothing")
HTML = {"Accept": "text/html"}


class Hanging(FakeClassifier):
    """Says nothing to its samples while it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.asked_by: list[str] = []

    def classify(self, *_: object, system: str = "", **__: object) -> Prediction:
        self.asked_by.append(system)
        self.goes_on.wait(60)
        return EGG


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    fake = Hanging()
    yield fake
    fake.goes_on.set()


def test_no_page_calls_a_model_not_even_the_first_one(hanging: Hanging) -> None:
    browser, began = client(hanging), time.monotonic()
    for path in PAGES * 5:
        reply = browser.get(path, headers=HTML)
        assert reply.status_code == (404 if path == "/nothing" else 200)
    assert time.monotonic() - began < 60
    assert hanging.asked_by == []


def test_until_a_model_was_asked_its_page_is_linked_and_says_nothing_wrong(hanging: Hanging) -> None:
    page = client(hanging).get("/digits", headers=HTML).text
    assert 'href="/digits"' in page
    assert '<noscript><p class="status">' not in page


UNUSABLE = {
    "empty": ("pass", b""),
    "corrupt": ("pass", FOOD.sample()[:300]),
    "raises": ("def sample(self): raise RuntimeError('broken')", None),
    "gives nothing": ("def sample(self): return None", None),
}


@pytest.fixture(params=UNUSABLE)
def flowers(request: pytest.FixtureRequest, systems_folder: Path, tmp_path: Path) -> str:
    """A system whose sample cannot be used."""
    method, sample = UNUSABLE[request.param]
    if sample is not None:
        (tmp_path / "sample.jpg").write_bytes(sample)
    write_flowers(systems_folder, tmp_path / "sample.jpg", method, datatypes=("FP32",))
    return "flowers"


@pytest.fixture
def url(listen: Listen) -> str:
    """Of a Triton that serves flowers and the first system's model, both of tensors."""
    image = tensor("image", "FP32", shape=(-1, 3, 224, 224))
    script = {}
    for name, system, labels in (("food_classifier", "food11", 11), ("flowers", "flowers", 2)):
        output = tensor("PROBABILITIES", "FP32", shape=(-1, labels))
        infer = answered([0.0] * (labels - 1) + [1.0])
        script |= serving(name, [image], [output], infer, system=system)
    return listen(script | ready("food_classifier", "flowers")).url


@pytest.fixture
def browser(flowers: str, url: str) -> FlaskClient:
    return create_app(Settings(triton_url=url)).test_client()


def test_a_sample_that_cannot_be_used_changes_nothing_for_the_others(
    browser: FlaskClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (*PAGES[:-1], "/classify/flowers", "/compare?system=flowers"):
        assert browser.get(path, headers=HTML).status_code == 200, path
    health = browser.get("/api/v1/health?system=flowers").get_json()
    assert (health["state"], health["code"]) == ("not_ready", "sample_unusable")
    assert str(tmp_path) not in health["message"]
    assert caplog.text.count("the sample for 'flowers' cannot be used") == 1
    ready = browser.get("/readyz").get_json()
    systems = ready.pop("systems")
    answers = {"ready": True, "model": {"name": "food_classifier", "version": "1"}}
    assert (ready, systems["food11"]) == (answers, answers)
    assert (systems["flowers"]["ready"], systems["flowers"]["error"]["code"]) == (False, "sample_unusable")
    for path in (*PAGES[:-1], "/classify/flowers"):
        page = browser.get(path, headers=HTML)
        assert (page.status_code, '<a href="/classify/flowers"' in page.text) == (200, False), path


def test_photos_are_answered_by_the_system_whose_sample_cannot_be_used(browser: FlaskClient) -> None:
    for path in ("/classify/flowers", "/compare?system=flowers", "/api/v1/classify?model=flowers"):
        photo = {"file": (io.BytesIO(FOOD.sample()), "photo.jpg")}
        reply = browser.post(path, data=photo, headers={"Accept": "application/json"})
        assert (reply.status_code, "tulip" in reply.text) == (200, True), reply.text


def test_the_workbench_names_the_step_that_repairs_an_unusable_sample(flowers: str, url: str) -> None:
    with Triton(url, 10) as triton, pytest.raises(BadSample, match=r"the sample of flowers .*: correct"):
        ask_sample(triton, registry.load(flowers), flowers)


def test_a_system_with_a_good_sample_is_linked() -> None:
    page = knowing(client(FakeClassifier()), "digits").get("/", headers=HTML).text
    assert 'href="/digits"' in page


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that wait for the samples of all systems."""
    monkeypatch.setattr(services, "_OTHERS_S", 60.0)


def test_readyz_has_the_state_of_each_system_and_the_first_alone_makes_it_503(patient: None) -> None:
    slow = ServingError("triton_too_slow", "no answer")
    reply = client(FakeClassifier(others={"digits": slow})).get("/readyz")
    systems = reply.get_json()["systems"]
    assert (reply.status_code, systems["food11"]["ready"]) == (200, True)
    assert (systems["digits"]["ready"], systems["digits"]["error"]["code"]) == (False, "triton_too_slow")
    assert systems["translator"]["error"]["code"] == "triton_unavailable"
    reply = client(FakeClassifier(slow, others={"digits": DIGIT})).get("/readyz")
    assert (reply.status_code, reply.get_json()["systems"]["digits"]["ready"]) == (503, True)


def test_a_sample_that_hangs_keeps_a_probe_for_a_second_where_it_is_not_the_first_system_s() -> None:
    class OthersHang(Hanging):
        def classify(self, *given: object, system: str = "", **named: object) -> Prediction:
            return EGG if system == "food11" else super().classify(*given, system=system, **named)

    other = OthersHang()
    began = time.monotonic()
    ready = client(other).get("/readyz")
    other.goes_on.set()
    assert (ready.status_code, ready.get_json()["systems"]["digits"]) == (200, {"ready": None})
    assert time.monotonic() - began < 30


def test_a_translator_that_answers_its_sample_with_nothing_is_not_ready(
    listen: Listen, patient: None
) -> None:
    output = [tensor("TRANSLATION", "BYTES", ""), tensor("TOKENS", "INT32", 0), tensor("SCORE", "FP32", 0.0)]
    script = serving("translator", [tensor("TEXT", "BYTES")], output, b"", 8)
    browser = create_app(Settings(triton_url=listen(script).url), FakeClassifier()).test_client()
    reply = browser.get("/readyz")
    translator = reply.get_json()["systems"]["translator"]
    assert (reply.status_code, translator["ready"]) == (200, False)
    assert translator["error"]["message"] == "translator answers its sample with nothing"


def test_metrics_have_the_readiness_of_each_system_without_waiting(hanging: Hanging) -> None:
    digits = client(FakeClassifier(others={"digits": ServingError("triton_too_slow", "no answer")}))

    def known() -> bool:
        text = digits.get("/metrics").text
        return 'web_ready{system="food11"} 1.0' in text and 'web_ready{system="digits"} 0.0' in text

    eventually(known)
    assert "web_started_seconds" in digits.get("/metrics").text
    assert 'web_ready{system="food11"}' not in client(hanging).get("/metrics").text


def test_a_model_that_answered_is_ready_while_loaded(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_READY_AGE_S", 0.0)
    spec = tensor("image", "FP32", shape=(-1, 3, 224, 224))
    infer = answered([0.0] * 10 + [1.0])
    listener = listen(serving("food_classifier", [spec], [spec], infer))
    browser = create_app(Settings(triton_url=listener.url)).test_client()

    def inferences() -> int:
        return sum(path.endswith("food_classifier/infer") for path in listener.asked)

    assert [browser.get("/readyz").status_code for _ in range(3)] == [200, 200, 200]
    assert inferences() == 1
    listener.script["/food_classifier/infer"] = b""  # it would not answer in time
    assert browser.get("/readyz").status_code == 200
    loaded = listener.script["/models/food_classifier"]
    listener.script["/models/food_classifier"] = http({"error": "unknown model"}, "400 Bad Request")
    assert browser.get("/readyz").status_code == 503
    listener.script |= {"/models/food_classifier": loaded, "/food_classifier/infer": infer}
    assert browser.get("/readyz").status_code == 200
    assert inferences() == 2


def test_a_state_is_asked_for_once_a_second_and_too_old_a_one_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, may_answer = list[object](), threading.Event()

    def ask(known: object) -> HealthModel:
        asked.append(known)
        assert may_answer.wait(60)
        return HealthModel(name="m")

    may_answer.set()
    readiness = services.Readiness(ask, "m")
    monkeypatch.setattr(services, "_READY_AGE_S", 60.0)
    assert [type(readiness.current_state()) for _ in range(2)] == [HealthModel] * 2
    assert asked == [None]
    may_answer.clear()
    monkeypatch.setattr(services, "_READY_AGE_S", 0.0)
    monkeypatch.setattr(services, "_STALE_S", 0.1)
    time.sleep(0.2)
    state = readiness.current_state()
    may_answer.set()
    assert isinstance(state, ServingError)
    assert "did not answer its sample within" in str(state)


def test_pages_forget_a_problem_that_nobody_has_seen_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: object) -> HealthModel:
        raise ServingError("triton_too_slow", "no answer")

    readiness = services.Readiness(ask, "m")
    readiness.current_state()
    assert readiness.known_problem == "no answer"
    monkeypatch.setattr(services, "_PROBLEM_AGE_S", 0.0)
    assert readiness.known_problem == ""


def test_a_sample_has_five_seconds_though_a_request_may_have_more() -> None:
    class Noting(FakeClassifier):
        left_s = 0.0

        def loaded(self, system: str, deadline: Deadline) -> ModelInfo:
            self.left_s = deadline.left_s()
            return super().loaded(system, deadline)

    noting = Noting()
    assert client(noting, request_deadline_s=60.0).get("/readyz").status_code == 200
    assert 0 < noting.left_s <= 5


def test_a_check_that_another_caller_starts_can_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the thread could be seen before it was started, and /metrics answered 500."""
    monkeypatch.setattr(services, "_READY_AGE_S", 0.0)
    readiness = services.Readiness(lambda _: HealthModel(name="m"), "m")
    readiness.current_state()
    start = threading.Thread.start

    def start_while_another_joins(thread: threading.Thread) -> None:
        readiness._check.join()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_while_another_joins)
    assert isinstance(readiness.current_state(), HealthModel)
