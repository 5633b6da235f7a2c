"""`gourmet up` recovers from a Triton that dies or freezes, and from workers that die behind the proxy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hard.faults import suffer
from support.accounting import KnownPhoto, PhotoLoad, learn
from support.nginx import nginx
from support.product import TRITON, Product
from support.stack import SAMPLES
from support.table import Keep

from gourmet.serving.waiting import wait_until

KILLS = 10
Fault = Callable[[Product, PhotoLoad], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def triton_is_killed(product: Product, _: PhotoLoad) -> Iterator[None]:
    """`gourmet up` starts Triton again; loading the models is part of the recovery."""
    (process,) = product.processes()[TRITON]
    process.kill()
    process.wait(20)
    yield


@contextlib.contextmanager
def triton_freezes(product: Product, _: PhotoLoad) -> Iterator[None]:
    (process,) = product.processes()[TRITON]
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@contextlib.contextmanager
def workers_are_killed(product: Product, load: PhotoLoad) -> Iterator[None]:
    """Kill a worker ten times, since most photos are in other processes when one dies."""
    workers = len(product.workers())
    for _ in range(KILLS):
        product.workers()[0].kill()
        load.run_for(1)
        wait_until(lambda: len(product.workers()) == workers, 30, "no other worker was started")
    yield


RELOADED: Final = "503 at once with Retry-After, until `gourmet up` has started Triton again"
# Each fault, what a user sees of it, and how it goes on.
FAULTS: Final[dict[str, tuple[Fault, str, dict[str, Any]]]] = {
    "Triton killed (-9)": (triton_is_killed, RELOADED, {"lasts_s": 0, "not_ready": True}),
    "Triton frozen (SIGSTOP) for 15 s, and continued": (
        triton_freezes,
        "504 after the deadline of ten seconds for requests at work, 503 at once for the others",
        {"lasts_s": 15, "not_ready": True},
    ),
}
WORKER_KILLED: Final = "502 from nginx for photos of the killed worker; clients ask again and are answered"


@pytest.fixture(scope="module")
def photos(product: Product) -> list[KnownPhoto]:
    return learn(product.url, [path.read_bytes() for path in SAMPLES])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tried", FAULTS)
def test_the_product_recovers(product: Product, photos: list[KnownPhoto], table: Keep, tried: str) -> None:
    fault, seen, options = FAULTS[tried]
    suffer(table, tried, product.url, photos, partial(fault, product), seen, product=product, **options)


@pytest.mark.timeout(600)
def test_workers_killed_behind_the_proxy_lose_no_answer(
    product: Product, photos: list[KnownPhoto], table: Keep, tmp_path: Path
) -> None:
    with nginx(product.up.port, tmp_path) as proxy:
        suffer(
            table,
            "a worker of gunicorn killed (-9) behind nginx",
            f"http://127.0.0.1:{proxy.port}",
            photos,
            partial(workers_are_killed, product),
            WORKER_KILLED,
            product=product,
            lasts_s=0,
            per_s=5,
            times=KILLS,
            alive=(200, 502),
            asks_again=True,
        )
