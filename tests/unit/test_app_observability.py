"""Logs, metrics, traces and alerts: what is in them, and what visitors cannot put there."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask.testing import FlaskClient
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.fake_classifier import EGG, FakeClassifier, client, form
from support.needs import need

from app import create_app
from app.models import Prediction
from app.web import tracing
from app.web.errors import ServingError
from app.web.logs import JsonLines
from app.web.metrics import FILES
from app.web.settings import Settings, SettingsError
from gourmet.systems.food11 import contract

# Logs
SECRET = "a-key-that-nobody-may-read"


class LoggedLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def requests(self) -> list[dict[str, Any]]:
        results = [json.loads(text) for text in self.texts]
        return [line for line in results if line["logger"] == "app.requests"]


@pytest.fixture
def lines() -> Iterator[LoggedLines]:
    handler = LoggedLines()
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def logged(outcome: Prediction | Exception = EGG, **settings: Any) -> Any:
    return client(outcome, log_format="json", **settings)


def test_a_request_is_logged_as_one_line_with_its_identifiers(lines: LoggedLines) -> None:
    answer = logged().post("/predict", data=form(), headers={"X-Request-ID": "mine-7"})
    (line,) = lines.requests()
    assert answer.headers["X-Request-ID"] == line["request_id"] == "mine-7"
    about = (line["route"], line["method"], line["status"], line["model"])
    assert about == ("/predict", "POST", 200, "food_classifier")
    assert 0 < line["ms"] < 60_000
    assert line["level"] == "info"
    assert line["time"].endswith("+00:00")


@pytest.mark.promise("SECURITY 10")
def test_file_names_keys_and_the_query_stay_out_of_the_log(lines: LoggedLines) -> None:
    browser = logged(api_keys=(SECRET,))
    headers = {"Authorization": f"Bearer {SECRET}", "Cookie": f"c={SECRET}"}
    data = form(name="grandmothers-birthday.jpg")
    browser.post("/api/v1/classify?model=grandmothers", data=data, headers=headers)
    browser.post("/api/v1/classify", headers={"X-API-Key": f"wrong-{SECRET}"}, data=form())
    assert len(lines.requests()) == 2
    for word in (SECRET, "grandmothers", "127.0.0.1"):
        assert word not in "".join(lines.texts)


def test_an_error_is_logged_with_its_code(lines: LoggedLines) -> None:
    logged().post("/predict", data=form(b"no picture"))
    logged(RuntimeError("nobody foresaw this")).post("/predict", data=form())
    refused, failed = lines.requests()
    assert (refused["status"], refused["code"], refused["level"]) == (400, "not_a_picture", "info")
    assert (failed["status"], failed["code"], failed["level"]) == (500, "internal", "warning")
    (why,) = (line for line in map(json.loads, lines.texts) if "exception" in line)
    assert "nobody foresaw this" in why["exception"]
    assert why["request_id"] == failed["request_id"]


def test_a_client_cannot_inject_a_line_into_the_log(lines: LoggedLines) -> None:
    logged().get('/none%0a{"level":"error"}\r\n', headers={"X-Request-ID": "a\tb"})
    logging.getLogger("x").warning("two\nlines \u2028 and %s", "three\r\n")
    assert all("\n" not in text and "\r" not in text and text.isascii() for text in lines.texts)
    (line,) = lines.requests()
    assert line["route"] == "unknown"


def test_probes_are_logged_only_when_they_fail(lines: LoggedLines) -> None:
    browser = logged()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert browser.get(path).status_code == 200
    assert lines.requests() == []
    assert logged(ServingError("triton_unavailable", "away")).get("/readyz").status_code == 503
    assert [line["status"] for line in lines.requests()] == [503]


def test_a_failed_request_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    browser = client(ServingError("triton_unavailable", "no Triton answers at 127.0.0.1:9"))
    reply = browser.post("/predict", data=form(), headers={"X-Request-ID": "mine-8"})
    assert reply.status_code == 503
    lines = [record.getMessage() for record in caplog.records if "mine-8" in record.getMessage()]
    assert lines == ["request mine-8: 503 triton_unavailable: no Triton answers at 127.0.0.1:9"]


# Metrics
ROOT = Path(__file__).parents[2]
WORDS = [f"strange{number}" for number in range(8)]


def any_method(browser: FlaskClient, word: str) -> None:
    for path in ("/predict", "/healthz", "/nowhere", "/static/style.css"):
        browser.open(path, method=word)


def any_address(browser: FlaskClient, word: str) -> None:
    for path in (f"/{word}", f"/static/{word}.js", f"/api/v1/{word}", f"/test?{word}=1"):
        browser.get(path)


def any_model_label_and_system(browser: FlaskClient, word: str) -> None:
    browser.post("/predict", data=form(name=word) | {"model": word})
    browser.post(f"/api/v1/classify?model={word}&probabilities={word}", data=form())
    browser.post(f"/api/v1/explain?label={word}&grid={word}", data=form())
    browser.get(f"/api/v1/models?system={word}")
    browser.post("/api/v1/generate", json={"text": word, "model": word, "options": {word: 1}})


def any_header(browser: FlaskClient, word: str) -> None:
    for name in ("Host", "Origin", "Accept", "Content-Type", "User-Agent", "X-Request-ID", "X-Forwarded-For"):
        browser.get("/", headers={name: word})
        browser.post("/api/v1/classify", data=b"x", headers={name: word})


def series(text: str) -> set[str]:
    """But for those of systems whose samples are answered meanwhile."""
    names = (line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#")
    return {name for name in names if not name.startswith(("web_ready", "web_serves_older"))}


@pytest.mark.parametrize("send", [any_method, any_address, any_model_label_and_system, any_header])
def test_no_label_has_a_value_that_a_client_chooses(send: Callable[[FlaskClient, str], Any]) -> None:
    browser = client()
    browser.get("/metrics")
    send(browser, "first")
    before = browser.get("/metrics").text
    for word in WORDS:
        send(browser, word)
    after = browser.get("/metrics").text
    assert series(after) == series(before)
    assert "strange" not in after
    assert 'method="other"' in after or send is not any_method


COUNT_EVERYTHING = """
from app.web import gunicorn_conf
gunicorn_conf.post_fork(None, None)
from app.web.metrics import Metrics
metrics = Metrics()
for metric in set(metrics._registry._names_to_collectors.values()):
    metric.labels(*metric._labelnames) if metric._labelnames else None
metrics.text()
"""
NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))"


def test_a_worker_reserves_disk_space_for_all_of_its_metrics(tmp_path: Path) -> None:
    """Found: a disk that was full ended the worker that was the first to count something new."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COUNT_EVERYTHING], cwd=ROOT, env=env, check=True)
    files = list(tmp_path.glob("*.db"))
    assert {path.name.rpartition("_")[0] for path in files} == set(FILES)
    for file in files:
        assert file.stat().st_blocks * 512 >= file.stat().st_size >= 1 << 20


def test_a_worker_without_disk_space_for_its_metrics_works_without_them(tmp_path: Path) -> None:
    """It waited for space, and so did all who asked it."""
    command = [sys.executable, "-c", NO_ROOM + COUNT_EVERYTHING]
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "/metrics has no counts of this worker" in ran.stderr
    assert not list(tmp_path.iterdir())


# Traces
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedClassifier(FakeClassifier):
    """Opens the spans that a real one does."""

    def classify(self, photo: bytes, *args: Any, **kwargs: Any) -> Prediction:
        with tracing.span("triton", model="m"):
            return super().classify(photo, *args, **kwargs)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> TracedClassifier:
    monkeypatch.setattr(tracing, "_tracer", None)  # as it is again afterwards
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        "opentelemetry.sdk.trace.export.BatchSpanProcessor", lambda _: SimpleSpanProcessor(spans)
    )
    return TracedClassifier()


def send(classifier: TracedClassifier, path: str, **options: Any) -> int:
    """Return the status once the answer was read to its end, where its span ends."""
    browser = create_app(Settings(), classifier).test_client()
    return browser.open(
        path, method="POST" if "data" in options else "GET", buffered=True, **options
    ).status_code


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def test_a_request_s_span_contains_triton_s_and_continues_the_browser_s_trace(
    traced: TracedClassifier, spans: InMemorySpanExporter
) -> None:
    headers = {"traceparent": PARENT, "X-Request-ID": "mine"}
    assert send(traced, "/predict", data=form(), headers=headers) == 200
    result = by_name(spans)
    outer, inner = result["POST /predict"], result["triton"]
    assert outer.context and inner.context and outer.parent and inner.parent  # noqa: PT018
    assert f"{outer.context.trace_id:032x}" == f"{inner.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{outer.parent.span_id:016x}" == PARENT.split("-")[2]
    assert inner.parent.span_id == outer.context.span_id
    wanted = {
        "http.request.method": "POST",
        "http.route": "/predict",
        "http.response.status_code": 200,
        "gourmet.request_id": "mine",
        "gourmet.model": "food_classifier",
    }
    assert wanted.items() <= dict(outer.attributes or {}).items()


def test_photos_of_one_call_are_in_its_trace_whichever_thread_asks(
    traced: TracedClassifier, spans: InMemorySpanExporter
) -> None:
    photos = form(*[contract.SYSTEM.sample()] * 5)
    assert send(traced, "/api/v1/classify", data=photos) == 200
    result = spans.get_finished_spans()
    outer = by_name(spans)["POST /api/v1/classify"]
    inner = [span for span in result if span.name == "triton"]
    assert len(inner) == 5
    assert {span.parent.span_id for span in inner if span.parent} == {outer.context.span_id}


def test_an_error_is_recorded_in_the_span(traced: TracedClassifier, spans: InMemorySpanExporter) -> None:
    traced.outcome = ServingError("triton_unavailable", "away")
    assert send(traced, "/predict", data=form()) == 503
    outer = by_name(spans)["POST /predict"]
    assert outer.status.status_code.name == "ERROR"
    assert (outer.attributes or {})["error.type"] == "503"
    assert (outer.attributes or {})["gourmet.error_code"] == "triton_unavailable"


def test_static_files_and_metrics_have_no_span(traced: TracedClassifier, spans: InMemorySpanExporter) -> None:
    for path in ("/static/style.css", "/metrics", "/no/such/page"):
        send(traced, path)
    assert by_name(spans).keys() - {"triton"} == {"GET unknown"}


@pytest.mark.parametrize("parent", ["", "00-zz-zz-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_an_invalid_traceparent_begins_a_new_trace(
    traced: TracedClassifier, spans: InMemorySpanExporter, parent: str
) -> None:
    assert send(traced, "/", headers={"traceparent": parent}) == 200
    assert by_name(spans)["GET /"].parent is None


def test_where_no_endpoint_is_set_nothing_is_traced_or_imported() -> None:
    code = (
        "import sys, app.web.tracing; from app import create_app;"
        "from support.fake_classifier import FakeClassifier;"
        "from app.web.settings import Settings; a = create_app(Settings(), FakeClassifier(RuntimeError()));"
        "assert a.test_client().get('/healthz').status_code == 200; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    assert subprocess.run([sys.executable, "-P", "-c", code], env=env, check=False).returncode == 0


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_tracing_is_off_without_an_endpoint(
    env: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_tracer", None)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    app = create_app(Settings(), FakeClassifier(RuntimeError()))
    assert ("tracing" in app.extensions) is wanted


def test_a_missing_tracing_package_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SettingsError, match=r"requirements/tracing\.txt"):
        create_app(Settings(), FakeClassifier(RuntimeError()))


# Alerts and the dashboard
FOLDER = Path(__file__).parents[2] / "observability"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "gourmetgram.json").read_text())


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [need("promtool", "prometheus"), *arguments], cwd=FOLDER, capture_output=True, text=True
    )


def questions() -> dict[str, str]:
    """Every expression of the dashboard, by panel and letter."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }


def test_prometheus_can_read_its_config() -> None:
    ran = promtool("check", "config", "prometheus.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_alerts_pass_their_promtool_tests() -> None:
    ran = promtool("test", "rules", "rules.test.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboards_questions_can_be_parsed_and_use_known_figures(tmp_path: Path) -> None:
    recorded = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
    used = set(re.findall(r"\b(?:model|web|route|replica):[\w:]+", " ".join(questions().values())))
    assert used <= recorded
    recordings = [
        {"record": f"question:{number}", "expr": expr} for number, expr in enumerate(questions().values())
    ]
    file = tmp_path / "questions.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "questions", "rules": recordings}]}))
    ran = promtool("check", "rules", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr
