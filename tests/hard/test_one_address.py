"""The web app in front of one Triton, beside the same app before it knew of several."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.checked_load import labels_of, one_thread, pace_row
from support.table import Keep
from support.triton import ROOT, triton_server
from support.web_app import StartWeb

MODEL = "food_classifier"
BEFORE = "b1d6ecf"


def test_one_address_is_asked_as_fast_as_before_there_could_be_several(
    tmp_path: Path, start: StartWeb, table: Keep
) -> None:
    found = subprocess.run(["git", "archive", BEFORE, "app", "src"], cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"commit {BEFORE} is not in this clone: fetch its history with `git fetch --unshallow`")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(tmp_path / "before", filter="data")
    with triton_server(one_thread(tmp_path / "models", MODEL, 2)) as server:
        server.wait_until_live(180)
        url = server.options.http_url
        now = start(url, FOOD11_MODEL_NAME=MODEL)
        before = start(url, FOOD11_MODEL_NAME=MODEL, PYTHONPATH=f"{tmp_path}/before/src:{tmp_path}/before")
        labels = labels_of(before)
        assert labels_of(now) == labels
        table(pace_row(f"one Triton, against the app of commit {BEFORE}", now, before, labels))
