"""Half an hour of photos, pages, API calls and broken files: nothing grows."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count

import psutil
import pytest
from support import hostile
from support.accounting import PhotoLoad, learn
from support.product import Product
from support.web_app import Site

PHOTOS_PER_S = 3
PATHS = (
    *("/", "/digits", "/compare", "/lab", "/lab/figures", "/api/docs", "/sample.jpg", "/test", "/healthz"),
    *("/readyz", "/metrics", "/api/v1/models", "/api/v1/health", "/api/v1/openapi.json"),
)
# How far the medians of the first and the last third may lie apart.
ALLOWED = {"MiB": lambda early: early * 1.05 + 10, "descriptors": lambda early: early + 6}
ALLOWED["threads"] = lambda early: early + 3


def size_of(processes: list[psutil.Process]) -> dict[str, float]:
    return {
        "MiB": sum(process.memory_full_info().uss for process in processes) / 2**20,
        "descriptors": sum(process.num_fds() for process in processes),
        "threads": sum(process.num_threads() for process in processes),
    }


def visit(web: Site, number: int, photo: bytes) -> None:
    """A page, a photo for the API and a hostile file, which is classified or refused with a reason."""
    path = PATHS[number % len(PATHS)]
    assert web.request("GET", path).status == 200, path
    for system in ("classify", "digits"):
        assert web.request("POST", f"/api/v1/{system}", photo, Content_Type="image/jpeg").status == 200
    what, data = hostile.file(number)
    reply = web.request("POST", "/api/v1/classify", data, Content_Type="image/jpeg")
    assert reply.status < 500, f"{what}: {reply.body[:200]!r}"
    assert reply.status == 200 or reply.json["results"][0]["error"]["code"], what


@pytest.mark.timeout(4 * 3600)
def test_a_soak_takes_no_more_of_the_machine_in_the_end(
    product: Product,
    drawings: list[bytes],
    note: Callable[[object], None],
    pytestconfig: pytest.Config,
) -> None:
    web, photos, before = Site(product.up.port), learn(product.url, drawings), product.counts()
    end = time.monotonic() + 60 * pytestconfig.getoption("--soak-minutes")
    looks: dict[tuple[str, str], list[float]] = defaultdict(list)
    with PhotoLoad(product.url, photos, PHOTOS_PER_S) as load:
        for number in count():
            if time.monotonic() > end:
                break
            visit(web, number, drawings[0])
            if number % 10 == 0:
                for kind, processes in product.processes().items():
                    for unit, value in size_of(processes).items():
                        looks[kind, unit].append(value)
            time.sleep(0.2)
    assert not load.account().lost
    assert product.counts() == before
    assert not product.strays()
    for (kind, unit), values in looks.items():
        values = values[len(values) // 10 :]  # without the warm-up
        third = max(1, len(values) // 3)
        early, late = statistics.median_high(values[:third]), statistics.median_high(values[-third:])
        note(f"{kind}: {early:.0f} {unit} early, {late:.0f} late")
        assert late <= ALLOWED[unit](early), (kind, unit, values)
