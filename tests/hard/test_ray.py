"""20,000 photos by a Ray cluster of two nodes, beside one node on the same processors, and while one dies."""

from __future__ import annotations

import signal
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.eventually import eventually
from support.ray_cluster import ABSENT, cluster, command, rows_of, workers
from support.table import Keep, TableRow

from gourmet.measure.stats import ratio

PHOTOS = 20_000
# Of both, one after the other, since what else runs on the machine changes; with so many photos each.
TURNS, PART = 5, 3_000


@pytest.fixture(scope="module")
def photos(food_photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list that names half as many twice."""
    folder = tmp_path_factory.mktemp("photos")
    with zipfile.ZipFile(food_photos / "test.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")][: PHOTOS // 2]
        archive.extractall(folder, names)
    listed = folder / "list.txt"
    listed.write_text("\n".join(f"{folder}/{name}" for name in names * 2))
    return listed


@pytest.fixture(scope="module")
def here(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    pytest.importorskip("ray", reason=ABSENT)
    rows = rows_of(command(photos, tmp_path_factory.mktemp("here") / "out.jsonl"))
    assert len(rows) == PHOTOS
    return rows


def row(tried: str, rows: list[Any], expected: list[Any], seen: str, good: bool) -> TableRow:
    wrong = sum(one != other for one, other in zip(rows, expected, strict=True))
    answered = sum(not each["error"] for each in rows)
    return TableRow(
        tried, len(rows), answered, seen, good and not wrong, wrong={"another row": wrong} if wrong else {}
    )


def test_two_nodes_keep_the_pace_of_one_on_the_same_processors(
    table: Keep, photos: Path, tmp_path: Path
) -> None:
    names = photos.read_text().splitlines()
    rates: dict[str, list[float]] = {"one": [], "two": []}
    rows: dict[str, list[Any]] = {"one": [], "two": []}
    with cluster(2) as one, cluster(1, 1) as two:
        for turn in range(TURNS):
            listed = tmp_path / f"{turn}.txt"
            listed.write_text("\n".join(names[turn * PART : (turn + 1) * PART]))
            order = [("one", one), ("two", two)]
            for nodes, ray in order if turn % 2 else order[::-1]:
                began = time.monotonic()
                rows[nodes] += rows_of(command(listed, tmp_path / f"{nodes}-{turn}.jsonl"), ray)
                rates[nodes].append(PART / (time.monotonic() - began))
    times = ratio(rates["two"], rates["one"])
    two_nodes, one_node = (", ".join(f"{rate:.0f}" for rate in rates[nodes]) for nodes in ("two", "one"))
    around = f"{times.value:.2f} ({times.low or 0:.2f}–{times.high or 0:.2f})"
    seen = f"{two_nodes} photos a second by two nodes, {one_node} by one: {around} times"
    name = "Ray: two nodes instead of one on the same processors"
    table(row(name, rows["two"], rows["one"], seen, times.value >= 0.85))


def test_a_worker_and_then_a_node_are_killed(
    table: Keep, photos: Path, here: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    part = Path(f"{out}.part")
    died: list[int] = []

    def kept() -> int:
        return part.read_bytes().count(b"\n") - 1 if part.exists() else 0

    with cluster(1, 1) as ray:
        _, second = ray.list_all_nodes()

        def meanwhile(_: subprocess.Popen[str]) -> None:
            eventually(lambda: kept() > PHOTOS // 10 and bool(workers(second)), 300)
            for each in workers(second):
                each.send_signal(signal.SIGKILL)
                died.append(kept())
            eventually(lambda: kept() > PHOTOS // 3, 300)
            ray.remove_node(second, allow_graceful=False)
            died.append(kept())

        rows = rows_of(command(photos, out), ray, meanwhile)
    seen = f"killed after {' and '.join(f'{each:,}' for each in died)} rows; every row that of the local run"
    table(row("Ray: a worker and then one of two nodes killed", rows, here, seen, died[-1] < PHOTOS))
