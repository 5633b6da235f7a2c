"""`gourmet classify --engine ray` on a real cluster writes the rows that the command writes by itself."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.needs import need_module
from support.triton import RunningTriton
from support.up import GOURMET

from gourmet.systems.food11.contract import SYSTEM

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    need_module("ray", "make setup-dev")
    utils = importlib.import_module("ray.cluster_utils")
    cluster = start_ray(utils.Cluster)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    cluster.shutdown()


def start_ray(start: Any) -> Any:
    """Start a cluster; another one where the machine is so busy that Ray's own 30 s were not enough."""
    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
    for tries_left in (2, 1, 0):
        try:
            return start(initialize_head=True, head_node_args=node)
        except Exception as exc:
            if not tries_left or "timed out during startup" not in str(exc):
                raise
    raise AssertionError("the last try returns or raises")


def rows_of(table: Path) -> list[dict[str, Any]]:
    files = sorted(table.iterdir()) if table.is_dir() else [table]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: str(row["path"]))


def test_photos_have_the_rows_of_a_run_without_ray(
    triton: RunningTriton, cluster: None, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, data in enumerate(SYSTEM.examples(40, 7, (96, 80))):
        (photos / f"{number:02}.jpg").write_bytes(data)
    (photos / "none.png").write_bytes(b"no picture")
    (photos / os.fsdecode(b"zw\xf6lf.jpg")).write_bytes(SYSTEM.sample())
    tables = {}
    for engine in ("local", "ray"):
        tables[engine] = tmp_path / f"{engine}.jsonl"
        words = ["--out", tables[engine], "--engine", engine, "--url", triton.http_url]
        # Not in this process, where Ray's warnings would be errors.
        done = subprocess.run([GOURMET, "classify", photos, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    local_rows, ray_rows = rows_of(tables["local"]), rows_of(tables["ray"])
    assert [row["path"] for row in ray_rows] == [row["path"] for row in local_rows]
    assert [(row["label"], row["error"]) for row in ray_rows] == [
        (row["label"], row["error"]) for row in local_rows
    ]
    for local, on_ray in zip(local_rows, ray_rows, strict=True):
        if local["error"] is None:
            assert on_ray["probabilities"] == pytest.approx(local["probabilities"], abs=2e-3)
