"""`gourmet doctor` beside the real web app: ready, and alive without its Triton."""

from __future__ import annotations

from typing import Any

from gourmet.doctor import CHECKS, Examined, Finding
from gourmet.stack.preflight import free_ports


def says(check: str, port: int, triton_url: str = "127.0.0.1:1") -> Finding:
    (finding,) = CHECKS[check](Examined((), "127.0.0.1", {"--port": port}, triton_url, False, {}))
    return finding


def test_a_ready_web_app_passes(python_web: Any) -> None:
    assert (says("web", python_web.port).level, says("web", python_web.port).cause) == (
        "ok",
        f"{python_web.url} is ready",
    )
    assert says("ports", python_web.port).cause == f"{python_web.port} held by the running stack"


def test_a_web_app_without_triton_fails_with_the_cause(start: Any) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    finding = says("web", start(nowhere, WEB_CONCURRENCY="1").port)
    assert finding.level == "fail"
    assert "runs but is not ready (" in finding.cause
    assert nowhere in finding.cause
    assert "TRITON_SERVER_URL" in finding.fix


def test_a_missing_web_app_is_reported() -> None:
    assert says("web", free_ports(1)[0]).cause == "no web app to ask"
