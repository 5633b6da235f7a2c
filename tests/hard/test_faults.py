"""`gourmet up` recovers from a Triton that dies or freezes, and from workers that die behind the proxy."""

from __future__ import annotations

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.accounting import ANSWERED, KnownPhoto, PhotoLoad, learn
from support.eventually import eventually
from support.nginx import nginx
from support.product import TRITON, Product
from support.repeating import Repeating

from gourmet.stack.processes import wait_until

PER_S: Final = 5.0
GOAL_S: Final = 10.0
# Every photo must be answered for this long before the product counts as recovered.
WELL_S: Final = 4.0
# The app reports for so long that it is ready: it asks once a second, and waits for a frozen Triton.
READY_LAGS_S: Final = 7.0
KILLS: Final = 10
Fault = Callable[[Product], contextlib.AbstractContextManager[None]]


class Probe(Repeating):
    """Asks /healthz and /readyz several times a second, as a balancer would."""

    def __init__(self, url: str) -> None:
        super().__init__(lambda thread, _: self._ask(("/healthz", "/readyz")[thread]), 2, 0.2)
        self._url = url
        self.replies: list[tuple[float, str, int]] = []  # when it came, from where, and its status or 0

    def statuses(self, path: str, begin: float = 0.0, end: float = float("inf")) -> set[int]:
        return {status for at, asked, status in list(self.replies) if asked == path and begin <= at < end}

    def _ask(self, path: str) -> None:
        status = 0
        try:
            with urllib.request.urlopen(self._url + path, timeout=20) as answer:
                status = answer.status
        except urllib.error.HTTPError as exc:
            with exc:
                status = exc.code
        except OSError:
            pass
        self.replies.append((time.monotonic(), path, status))


@contextlib.contextmanager
def triton_is_killed(product: Product) -> Iterator[None]:
    """`gourmet up` starts Triton again; loading the models is part of the recovery."""
    (process,) = product.processes()[TRITON]
    process.kill()
    process.wait(20)
    yield


@contextlib.contextmanager
def triton_freezes(product: Product) -> Iterator[None]:
    (process,) = product.processes()[TRITON]
    process.suspend()
    try:
        time.sleep(15)
        yield
    finally:
        process.resume()


@contextlib.contextmanager
def workers_are_killed(product: Product) -> Iterator[None]:
    """Kill a worker ten times, since most photos are in other processes when one dies."""
    workers = len(product.workers())
    for _ in range(KILLS):
        product.workers()[0].kill()
        time.sleep(1)
        wait_until(lambda: len(product.workers()) == workers, 30, "no other worker was started")
    yield


@pytest.fixture(scope="module")
def photos(product: Product, drawings: list[bytes]) -> list[KnownPhoto]:
    return learn(product.url, drawings)


def suffer(product: Product, url: str, photos: list[KnownPhoto], fault: Fault, **more: Any) -> Probe:
    """Bring `fault` about under load, and go on until all photos are answered again and none is lost."""
    before = product.counts()
    with Probe(url) as probe, PhotoLoad(url, photos, PER_S, silent_after_s=40, **more) as load:
        time.sleep(3)
        began = time.monotonic()
        with fault(product):
            pass
        ended = time.monotonic()
        eventually(lambda: answered_since(load, max(began, time.monotonic() - WELL_S)))
        well = time.monotonic()
    account = load.account()
    assert not account.lost
    recovery_s = account.recovery_s(ended)
    assert recovery_s is not None
    assert recovery_s <= GOAL_S
    assert probe.statuses("/readyz", 0, began) == {200}
    assert probe.statuses("/readyz", well - WELL_S / 2, well) == {200}
    # Instances of a model that was loaded again finish first what they had begun.
    eventually(lambda: product.counts() == before and not product.strays())
    return probe


def answered_since(load: PhotoLoad, since: float) -> bool:
    """Whether photos came for as long as `since`, and each was answered."""
    outcomes = [attempt.outcome for attempt in load.account().attempts if attempt.sent >= since]
    return len(outcomes) > 0.8 * PER_S * WELL_S and set(outcomes) == {ANSWERED}


@pytest.mark.parametrize("fault", [triton_is_killed, triton_freezes])
def test_the_product_recovers_and_reports_meanwhile_that_it_is_not_ready(
    product: Product, photos: list[KnownPhoto], fault: Fault
) -> None:
    began = time.monotonic()
    probe = suffer(product, product.url, photos, fault)
    assert probe.statuses("/healthz") == {200}
    assert 503 in probe.statuses("/readyz", began)
    if fault is triton_freezes:
        assert 200 not in probe.statuses("/readyz", began + 3 + READY_LAGS_S, began + 3 + 15)


def test_workers_killed_behind_the_proxy_lose_no_answer(
    product: Product, photos: list[KnownPhoto], tmp_path: Path
) -> None:
    """nginx answers 503 for photos of the killed worker; clients ask again and are answered."""
    with nginx(product.up.port, tmp_path) as proxy:
        probe = suffer(product, f"http://127.0.0.1:{proxy.port}", photos, workers_are_killed, asks_again=True)
    assert probe.statuses("/healthz") <= {200, 503}
