"""What is counted has labels of the app's own: strangers send what they like, and no series is added."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.fake_classifier import client, form

from app.web.metrics import FILES

ROOT = Path(__file__).parents[2]
WORDS = [f"strange{number}" for number in range(8)]


def any_method(browser: FlaskClient, word: str) -> None:
    for path in ("/predict", "/healthz", "/nowhere", "/static/style.css"):
        browser.open(path, method=word)


def any_address(browser: FlaskClient, word: str) -> None:
    for path in (
        f"/{word}",
        f"/static/{word}.js",
        f"/api/v1/{word}",
        f"/lab/reports/{word}",
        f"/test?{word}=1",
    ):
        browser.get(path)


def any_model_label_and_system(browser: FlaskClient, word: str) -> None:
    browser.post("/predict", data=form(name=word) | {"model": word})
    browser.post(f"/api/v1/classify?model={word}&probabilities={word}", data=form())
    browser.post(f"/api/v1/explain?label={word}&grid={word}", data=form())
    browser.get(f"/api/v1/models?system={word}")
    browser.post("/api/v1/generate", json={"text": word, "model": word, "options": {word: 1}})


def any_header(browser: FlaskClient, word: str) -> None:
    names = (
        "Host",
        "Origin",
        "Sec-Fetch-Site",
        "Accept",
        "Content-Type",
        "User-Agent",
        "X-Request-ID",
        "X-API-Key",
    )
    for name in (*names, "X-Forwarded-For", "Traceparent", "Range"):
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
