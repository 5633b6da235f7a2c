"""`make audit` is green only where packages were looked up and none is known to be vulnerable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "audit.py"
REPORT = """
import json
print(json.dumps({{"dependencies": [{{"name": "x", "version": "1", {}}}]}}))
"""


@pytest.mark.parametrize(
    ("pip_audit", "status", "sentence"),
    [
        (REPORT.format("'vulns': []"), 0, "1 packages looked up, 0 with known"),
        (REPORT.format("'vulns': [{'id': 'CVE-1', 'fix_versions': []}]"), 1, "x 1: CVE-1"),
        ("raise SystemExit('it crashed')", 2, "pip-audit failed: it crashed"),
        (REPORT.format("'skip_reason': 'unknown'"), 3, "COULD NOT BE ASKED"),
        ("import requests; requests.get('http://127.0.0.1:9')", 3, "COULD NOT BE ASKED"),
    ],
    ids=["none known", "vulnerable", "crashed", "all unknown", "offline"],
)
def test_the_status_tells_what_became_of_the_audit(
    pip_audit: str, status: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "pip_audit.py").write_text(pip_audit)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert sentence in done.stdout
