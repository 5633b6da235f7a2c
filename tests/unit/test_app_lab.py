"""The lab's page without a Triton: what was counted, and the addresses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.listener import Listen, listen

from app import create_app
from app.pages import lab
from app.web.settings import Rate, Settings, SettingsError
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.statistics import ModelStatistics
from gourmet.triton_client.triton import Triton

__all__ = ["listen"]  # the fixture

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


def client(**settings: Any) -> FlaskClient:
    """The app with nobody at Triton's address."""
    return create_app(
        Settings(**{"triton_url": "127.0.0.1:1"} | settings, connect_timeout_s=0.5)
    ).test_client()


# What Triton counted


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
    return client()


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
    browser = client(triton_metrics_url=url)
    body = browser.get("/lab/figures").get_json()
    assert body["machine"] == [
        "CPU: 25% busy, 6.00 of 24.0 GB of memory in use",
        "GPU 0: 100% busy, 20.0 of 80.0 GB of memory in use",
        "GPU 1: 50% busy",
    ]
    summary = "1 instance on the CPU; batches of up to 8 rows; no dynamic batching"
    assert body["configs"] == {"m": summary}
    page = browser.get("/lab").text
    assert f"<dd>{summary}</dd>" in page
    assert "<span>GPU 1: 50% busy</span>" in page
    assert browser.get("/lab/sample").data[:2] == b"\xff\xd8"
    for nowhere in ("", "http://127.0.0.1:1/metrics"):
        assert client(triton_metrics_url=nowhere).get("/lab/figures").get_json()["machine"] == []


def test_the_lab_table_has_means_and_a_dash_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    text = counting(monkeypatch, [COUNTED, NEVER_ASKED]).get("/lab").text
    idle, counted = re.findall(r'<tr><th scope="row">.*?</tr>', text, re.S)
    assert re.findall("<td>(.*?)</td>", counted) == ["30", "1", "60", "20", "3.00", "0.20", "2.00"]
    assert re.findall("<td>(.*?)</td>", idle) == ["0", "0", "0", "0", "–", "–", "–"]
    assert [lab.figure(value) for value in (0, 1.234, 12.34, 123.4, 1257.4)] == [
        *("0", "1.23", "12.3", "123", "1257")
    ]


# The addresses


@pytest.mark.parametrize("guarded", [False, True], ids=["open", "keys and a rate"])
def test_the_lab_page_reports_that_triton_is_away(guarded: bool) -> None:
    settings = {"api_keys": ("k" * 16,), "rate_limit": Rate(1, 3600)} if guarded else {}
    browser = client(**settings)
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
    browser = client(lab_page="off")
    for address in ("/lab", "/lab/figures"):
        assert browser.get(address).status_code == 404
    assert 'href="/lab"' not in browser.get("/compare").text
    assert 'href="/lab"' in client().get("/compare").text
    with pytest.raises(SettingsError, match="LAB_PAGE is 'no': input should be 'on' or 'off'"):
        Settings.from_env({"LAB_PAGE": "no"})
