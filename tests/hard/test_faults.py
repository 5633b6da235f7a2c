"""What `gourmet up` makes of processes that die or hang, and of models that go wrong, under steady load."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest
from hard.faults import at_once, keep, suffer
from support.accounting import Load, Photo, learn
from support.product import TRITON, Product
from support.stack import SAMPLES
from support.table import Row

from gourmet.serving.waiting import wait_until

MODEL = "food_classifier"
pytestmark = pytest.mark.timeout(600)

Keep = Callable[[Row], Row]


@pytest.fixture(scope="module")
def photos(product: Product) -> list[Photo]:
    return learn(product.url, [path.read_bytes() for path in SAMPLES])


def triton(product: Product) -> psutil.Process:
    return product.processes()[TRITON][0]


@pytest.mark.parametrize(
    ("number", "tried"),
    [
        (signal.SIGKILL, "Triton killed (-9)"),
        (signal.SIGTERM, "Triton receives SIGTERM, and is started again"),
    ],
)
def test_triton_ends(
    product: Product, photos: list[Photo], table: Keep, number: signal.Signals, tried: str
) -> None:
    """The supervisor starts it again; what it takes to load the models is part of the recovery."""

    def end() -> None:
        process = triton(product)
        process.send_signal(number)
        process.wait(20)  # it finishes what it has, unless killed

    def fault(_: Load) -> contextlib.AbstractContextManager[None]:
        return at_once(end)

    ordeal = suffer(tried, product.url, photos, fault, lasts_s=0, not_ready=True, product=product)
    keep(
        ordeal,
        table,
        "503 at once, to come again, until `gourmet up` has started Triton again",
        "Loading is what takes the time, torch's import above all.",
    )


def test_triton_stands_still(product: Product, photos: list[Photo], table: Keep) -> None:
    @contextlib.contextmanager
    def fault(_: Load) -> Iterator[None]:
        process = triton(product)
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    ordeal = suffer(
        "Triton stopped (SIGSTOP) for 15 s, and continued",
        product.url,
        photos,
        fault,
        lasts_s=15,
        not_ready=True,
        product=product,
    )
    keep(ordeal, table, "504 after the deadline of ten seconds for those at work, 503 at once for the others")


def test_a_stub_is_killed(product: Product, photos: list[Photo], table: Keep) -> None:
    def fault(_: Load) -> contextlib.AbstractContextManager[None]:
        return at_once(product.stubs(MODEL)[0].kill)

    ordeal = suffer(
        "a stub of food_classifier killed (-9)", product.url, photos, fault, lasts_s=0, product=product
    )
    keep(
        ordeal,
        table,
        "502, or 504 after the deadline, for what falls to that process, until the model is loaded again",
    )


def test_the_model_is_unloaded(product: Product, photos: list[Photo], table: Keep) -> None:
    @contextlib.contextmanager
    def fault(_: Load) -> Iterator[None]:
        product.control("unload", MODEL)
        try:
            yield
        finally:
            product.control("load", MODEL)

    ordeal = suffer(
        "the model unloaded for 5 s, and loaded again",
        product.url,
        photos,
        fault,
        not_ready=True,
        product=product,
    )
    keep(ordeal, table, "503 with the names of the models that are served")


def test_a_broken_version_is_deployed(product: Product, photos: list[Photo], table: Keep) -> None:
    """Triton refuses to load it and goes on with the version that it has."""

    @contextlib.contextmanager
    def fault(_: Load) -> Iterator[None]:
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

    ordeal = suffer("a broken version deployed", product.url, photos, fault, product=product)
    keep(ordeal, table, "nothing: the version before goes on answering")


def test_the_model_repository_is_away(product: Product, photos: list[Photo], table: Keep) -> None:
    """Moved away, since what may not be read is read by root; a load of the model is tried meanwhile."""

    @contextlib.contextmanager
    def fault(_: Load) -> Iterator[None]:
        elsewhere = product.models.with_name("elsewhere")
        product.models.rename(elsewhere)
        try:
            with contextlib.suppress(OSError):
                product.control("load", MODEL)
            yield
        finally:
            elsewhere.rename(product.models)

    ordeal = suffer(
        "the model repository away, and a load tried", product.url, photos, fault, product=product
    )
    keep(ordeal, table, "nothing: what is loaded goes on answering")


def test_workers_of_gunicorn_are_killed(product: Product, photos: list[Photo], table: Keep) -> None:
    """Often, and with many photos, since the most of them are elsewhere when it happens.

    What a killed worker had is reset, and asked again: that is what nobody may lose by.
    """
    times = 10

    @contextlib.contextmanager
    def fault(load: Load) -> Iterator[None]:
        for _ in range(times):
            product.workers()[0].kill()
            load.run_for(1)
            wait_until(lambda: len(product.workers()) == workers, 30, "no other worker was started")
        yield

    workers = len(product.workers())
    ordeal = suffer(
        "a worker of gunicorn killed (-9)",
        product.url,
        photos,
        fault,
        lasts_s=0,
        product=product,
        per_s=25,
        times=times,
        alive=(200, 0),
        asks_again=True,
    )
    keep(
        ordeal,
        table,
        "the connections that the worker had are reset; a client that asks again, as the page does by "
        "itself, is answered by the other worker",
    )
