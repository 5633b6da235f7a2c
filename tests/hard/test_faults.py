"""What `gourmet up` makes of processes that die or hang, and of models that go wrong, under steady load."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest
from hard.faults import suffer
from support.accounting import KnownPhoto, PhotoLoad, learn
from support.product import TRITON, Product
from support.stack import SAMPLES
from support.table import Keep

from gourmet.serving.waiting import wait_until

MODEL = "food_classifier"
KILLS = 10
Fault = Callable[[Product, PhotoLoad], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def triton_ends(product: Product, _: PhotoLoad, number: signal.Signals = signal.SIGKILL) -> Iterator[None]:
    """The supervisor starts it again; what it takes to load the models is part of the recovery."""
    (process,) = product.processes()[TRITON]
    process.send_signal(number)
    process.wait(20)  # it finishes what it has, unless killed
    yield


@contextlib.contextmanager
def triton_stands_still(product: Product, _: PhotoLoad) -> Iterator[None]:
    (process,) = product.processes()[TRITON]
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@contextlib.contextmanager
def stub_is_killed(product: Product, _: PhotoLoad) -> Iterator[None]:
    product.stubs(MODEL)[0].kill()
    yield


@contextlib.contextmanager
def model_is_unloaded(product: Product, _: PhotoLoad) -> Iterator[None]:
    product.control("unload", MODEL)
    try:
        yield
    finally:
        product.control("load", MODEL)


@contextlib.contextmanager
def broken_version(product: Product, _: PhotoLoad) -> Iterator[None]:
    """Triton refuses to load it and goes on with the version that it has."""
    newer = product.models / MODEL / "2"
    newer.mkdir()
    (newer / "model.py").write_text("raise RuntimeError('broken')\n")
    try:
        with contextlib.suppress(OSError):
            product.control("load", MODEL)
        yield
    finally:
        shutil.rmtree(newer)
        product.control("load", MODEL)


@contextlib.contextmanager
def repository_is_away(product: Product, _: PhotoLoad) -> Iterator[None]:
    """Moved away, since what may not be read is read by root; a load of the model is tried meanwhile."""
    elsewhere = product.models.with_name("elsewhere")
    product.models.rename(elsewhere)
    try:
        with contextlib.suppress(OSError):
            product.control("load", MODEL)
        yield
    finally:
        elsewhere.rename(product.models)


@contextlib.contextmanager
def workers_are_killed(product: Product, load: PhotoLoad) -> Iterator[None]:
    """Often, and with many photos, since the most of them are elsewhere when it happens.

    What a killed worker had is reset, and asked again: that is what nobody may lose by.
    """
    workers = len(product.workers())
    for _ in range(KILLS):
        product.workers()[0].kill()
        load.run_for(1)
        wait_until(lambda: len(product.workers()) == workers, 30, "no other worker was started")
    yield


LOADED_AGAIN: Final = "503 at once, to come again, until `gourmet up` has started Triton again"
# What is tried: the fault, what a user sees of it, and how it goes on.
FAULTS: Final[dict[str, tuple[Fault, str, dict[str, Any]]]] = {
    "Triton killed (-9)": (triton_ends, LOADED_AGAIN, {"lasts_s": 0, "not_ready": True}),
    "Triton receives SIGTERM, and is started again": (
        partial(triton_ends, number=signal.SIGTERM),
        LOADED_AGAIN,
        {"lasts_s": 0, "not_ready": True},
    ),
    "Triton stopped (SIGSTOP) for 15 s, and continued": (
        triton_stands_still,
        "504 after the deadline of ten seconds for those at work, 503 at once for the others",
        {"lasts_s": 15, "not_ready": True},
    ),
    "a stub of food_classifier killed (-9)": (
        stub_is_killed,
        "502, or 504 after the deadline, for what falls to that process, until the model is loaded again",
        {"lasts_s": 0},
    ),
    "the model unloaded for 5 s, and loaded again": (
        model_is_unloaded,
        "503 with the names of the models that are served",
        {"not_ready": True},
    ),
    "a broken version deployed": (
        broken_version,
        "nothing: the version before goes on answering",
        {},
    ),
    "the model repository away, and a load tried": (
        repository_is_away,
        "nothing: what is loaded goes on answering",
        {},
    ),
    "a worker of gunicorn killed (-9)": (
        workers_are_killed,
        "the connections that the worker had are reset; a client that asks again, as the page does by "
        "itself, is answered by the other worker",
        {"lasts_s": 0, "per_s": 25, "times": KILLS, "alive": (200, 0), "asks_again": True},
    ),
}


@pytest.fixture(scope="module")
def photos(product: Product) -> list[KnownPhoto]:
    return learn(product.url, [path.read_bytes() for path in SAMPLES])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tried", FAULTS)
def test_it_goes_on(product: Product, photos: list[KnownPhoto], table: Keep, tried: str) -> None:
    fault, seen, options = FAULTS[tried]
    suffer(table, tried, product.url, photos, partial(fault, product), seen, product=product, **options)
