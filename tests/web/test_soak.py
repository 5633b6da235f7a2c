"""Minutes of photos, pages, API calls and broken files: nothing grows."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from itertools import count
from pathlib import Path

import psutil
import pytest
from support import hostile
from support.accounting import PhotoLoad, learn
from support.up import Up
from support.web_app import Site

PHOTOS_PER_S = 3
MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
DRAWINGS = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "drawings").glob("*.jpg"))]
PATHS = (
    *("/", "/digits", "/compare", "/lab", "/lab/figures", "/api/docs", "/sample.jpg", "/test", "/healthz"),
    *("/readyz", "/metrics", "/api/v1/models", "/api/v1/health", "/api/v1/openapi.json"),
)
# How far the medians of the first and the last third may lie apart.
ALLOWED = {
    "MiB": lambda early: early * 1.05 + 10,
    "descriptors": lambda early: early + 6,
    "threads": lambda early: early + 3,
}


def size_of(processes: list[psutil.Process]) -> dict[str, float]:
    return {
        "MiB": sum(process.memory_full_info().uss for process in processes) / 2**20,
        "descriptors": sum(process.num_fds() for process in processes),
        "threads": sum(process.num_threads() for process in processes),
    }


def visit(web: Site, number: int) -> None:
    """A page, a photo for the API and a hostile file, which is classified or refused with a reason."""
    path = PATHS[number % len(PATHS)]
    assert web.request("GET", path).status == 200, path
    for system in ("classify", "digits"):
        reply = web.request("POST", f"/api/v1/{system}", DRAWINGS[0], Content_Type="image/jpeg")
        assert reply.status == 200
    what, data = hostile.file(number)
    reply = web.request("POST", "/api/v1/classify", data, Content_Type="image/jpeg")
    assert reply.status < 500, f"{what}: {reply.body[:200]!r}"
    if reply.status != 200:  # an empty file fails the whole call
        error = reply.json.get("error") or reply.json["results"][0]["error"]
        assert error["code"], what


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_soak_takes_no_more_of_the_machine_in_the_end(tmp_path: Path) -> None:
    looks: dict[tuple[str, str], list[float]] = defaultdict(list)
    with Up("--unlocked", tmp=tmp_path) as up:
        web, end = Site(up.port), time.monotonic() + 60 * MINUTES
        photos = learn(web.url, DRAWINGS)
        before = {kind: len(processes) for kind, processes in up.by_kind().items()}
        with PhotoLoad(web.url, photos, PHOTOS_PER_S) as load:
            for number in count():
                if time.monotonic() > end:
                    break
                visit(web, number)
                if number % 10 == 0:
                    for kind, processes in up.by_kind().items():
                        for unit, value in size_of(processes).items():
                            looks[kind, unit].append(value)
                time.sleep(0.2)
        assert not load.account().lost
        assert {kind: len(processes) for kind, processes in up.by_kind().items()} == before
        assert not up.strays()
    assert not up.processes()
    assert not up.leftovers()
    for (kind, unit), values in looks.items():
        values = values[len(values) // 10 :]  # without the warm-up
        third = max(1, len(values) // 3)
        early, late = statistics.median_high(values[:third]), statistics.median_high(values[-third:])
        assert late <= ALLOWED[unit](early), (kind, unit, values)
