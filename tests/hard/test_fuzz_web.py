"""Thousands of hostile requests to the real app in front of a real Triton, between honest ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from support.hostile_requests import attack, bad
from support.table import Row

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "4000"))


@pytest.mark.timeout(3600)
def test_hostile_requests(start: Callable[..., Any], triton: Any, table: Callable[[Row], Row]) -> None:
    web = start(triton.http_url, UPLOAD_DEADLINE_S="20")
    workers = {child.pid for child in psutil.Process(web.process.pid).children()}
    results, examples = attack(web.url, range(REQUESTS))
    broken = bad(results)
    survived = {child.pid for child in psutil.Process(web.process.pid).children()} == workers
    hard = web.request("GET", "/readyz").status == 200
    table(
        Row(
            tried="hostile requests to the web app, honest ones between them",
            times=1,
            requests=REQUESTS,
            answered=results["200"] + results["answered rightly"],
            refused={key: results[key] for key in results if key[0] in "45" and key not in broken},
            wrong=broken,
            silent={"closed without an answer": results["no answer"]} if results["no answer"] else {},
            recovery_s=None,
            seen="a status below 500 with the reason, or the answer; honest photos are answered rightly",
            survived=not broken and survived and hard,
        )
    )
    assert broken == {}, {why: examples[why] for why in broken}
    assert survived, "a worker of gunicorn died"
    assert hard
    assert results["no answer"] == 0, examples["no answer"]
