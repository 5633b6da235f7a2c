"""The audit of the packages: an answer that was not had is no good news."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

AUDIT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "audit.py"))
SAFE: dict[str, Any] = {"name": "safe", "version": "1", "vulns": []}
UNKNOWN: dict[str, Any] = {"name": "unknown", "skip_reason": "not found"}
BAD: dict[str, Any] = {
    "name": "bad",
    "version": "1",
    "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}, {"id": "CVE-2", "fix_versions": []}],
}


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ([SAFE], 0, "1 packages looked up, 0 with known vulnerabilities"),
        ([SAFE, BAD], 1, "bad 1: CVE-1, fixed in 2\nbad 1: CVE-2, fixed in none yet"),
        ([SAFE, UNKNOWN], 0, "not looked up: unknown"),
        ([UNKNOWN, UNKNOWN], 0, "THE DATABASE COULD NOT BE ASKED"),
        ([], 0, "THE DATABASE COULD NOT BE ASKED"),
    ],
)
def test_what_is_said_of_what_was_found(
    found: list[dict[str, Any]], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert AUDIT["tell"](found) == status
    assert said in capsys.readouterr().out


def test_the_pins_are_those_of_all_that_runs() -> None:
    pinned = AUDIT["pins"]().splitlines()
    assert {"flask==3.1.3", "pillow==13.0.0", "torch==2.13.0", "tritonclient==2.73.0"} <= {
        x.lower() for x in pinned
    }
    assert all("[" not in line and " " not in line for line in pinned)
