"""Thousands of hostile requests to the real app, and rows to the Python model, between honest ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from support import hostile_rows
from support.hostile_requests import attack, bad
from support.hostile_rows import stubs
from support.table import Keep, TableRow

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "4000"))


@pytest.mark.timeout(3600)
def test_hostile_requests(start: Callable[..., Any], triton: Any, table: Keep) -> None:
    web = start(triton.http_url)
    workers = {child.pid for child in psutil.Process(web.process.pid).children()}
    results, examples = attack(web.url, range(REQUESTS))
    broken = bad(results)
    survived = {child.pid for child in psutil.Process(web.process.pid).children()} == workers
    ready = web.request("GET", "/readyz").status == 200
    table(
        TableRow(
            tried="hostile requests to the web app, honest ones between them",
            requests=REQUESTS,
            answered=results["200"] + results["answered rightly"],
            refused={key: results[key] for key in results if key[0] in "45" and key not in broken},
            wrong={f"{why}: {examples[why]}": many for why, many in broken.items()},
            silent={"closed without an answer": results["no answer"]} if results["no answer"] else {},
            seen="a status below 500 with the reason, or the answer; honest photos are answered rightly",
            survived=not broken and survived and ready,
        )
    )
    assert results["no answer"] == 0, examples["no answer"]


ROWS = int(os.environ.get("FUZZ_ROWS", "4000"))


@pytest.mark.timeout(3600)
def test_hostile_rows(triton: Any, table: Keep) -> None:
    before = stubs(triton.http_url)
    results = hostile_rows.attack(triton, range(ROWS))
    assert stubs(triton.http_url) == before, "a stub died"
    fine = {"answered", "answered rightly", "refused"}
    broken = {why: count for why, count in results.items() if why not in fine}
    table(
        TableRow(
            tried="hostile rows to the Python model, a photo among them",
            requests=ROWS,
            answered=results["answered"] + results["answered rightly"],
            refused={"400, with the row's place": results["refused"]},
            wrong=broken,
            seen="the request with the bad row is refused; the photos of all others are answered rightly",
            survived=not broken,
        )
    )
