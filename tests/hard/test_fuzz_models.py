"""Thousands of hostile rows straight to the Python model in the real Triton, between honest ones."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.hostile_rows import attack, stubs
from support.table import Keep, Row

ROWS = int(os.environ.get("FUZZ_ROWS", "4000"))


@pytest.mark.timeout(3600)
def test_hostile_rows(triton: Any, table: Keep) -> None:
    before = stubs(triton.http_url)
    results = attack(triton, range(ROWS))
    assert stubs(triton.http_url) == before, "a stub died"
    fine = {"answered", "answered rightly", "refused"}
    broken = {why: count for why, count in results.items() if why not in fine}
    table(
        Row(
            tried="hostile rows to the Python model, a photo among them",
            requests=ROWS,
            answered=results["answered"] + results["answered rightly"],
            refused={"400, with the row's place": results["refused"]},
            wrong=broken,
            seen="the request with the bad row is refused; the photos of all others are answered rightly",
            survived=not broken,
        )
    )
