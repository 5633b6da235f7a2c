"""Five times as much as the stack can do, for two minutes.

What it can do afterwards is compared with what it could before, on a machine whose pace may have changed by
a half within those minutes: by so much less is wanted (`CpuPace`), and the row says by how much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from support.accounting import ANSWERED, REFUSED, Account, KnownPhoto, PhotoLoad, learn
from support.stack import SAMPLES, CpuPace, ResourceUse
from support.table import Keep

from app.core.settings import Settings

TIMES = 5
SECONDS = 120
WORKERS = 2
# One worker may happen to accept all of them: one address has 8 places and half of the 32 waiting places.
AT_ONCE = 24
MODELS = ["food_classifier", "food_classifier_onnx"]


@pytest.fixture(scope="module", params=MODELS)
def web(request: pytest.FixtureRequest, start: Callable[..., Any], triton: Any) -> Any:
    at_work = str(Settings().max_at_work)
    app = start(triton.http_url, FOOD11_MODEL_NAME=request.param, MAX_AT_WORK=at_work)
    yield app, request.param
    app.stop()


def during(load: PhotoLoad, seconds: float) -> Account:
    begin = time.monotonic()
    load.run_for(seconds)
    return load.account().between(begin, time.monotonic())


def alone(url: str, photos: list[KnownPhoto], at_once: int, seconds: float) -> Account:
    with PhotoLoad(url, photos, at_once=at_once) as load:
        load.run_for(seconds)
    return load.account()


def test_overload(web: Any, table: Keep) -> None:
    app, model = web
    photos = learn(app.url, [path.read_bytes() for path in SAMPLES])
    alone(app.url, photos, 200, 10)  # so that nothing is done for the first time, by any thread
    unloaded_s = alone(app.url, photos, 1, 10).quantile_s(ANSWERED, 0.95)
    with CpuPace() as pace:
        started = time.monotonic()
        full = alone(app.url, photos, AT_ONCE, 15)
        pace_before = pace.between(started, time.monotonic())
        capacity = full.per_s(ANSWERED)
        assert full.count(ANSWERED) == len(full.attempts), full.reasons(REFUSED) + full.lost
        settings = Settings()
        bound_s = WORKERS * (settings.max_at_work + settings.max_waiting) / capacity

        root = psutil.Process(app.process.pid)
        own = ResourceUse(lambda: {"app": [root, *root.children(recursive=True)]})
        with own, PhotoLoad(app.url, photos, capacity * TIMES) as load:
            begin = time.monotonic()
            load.run_for(SECONDS)
            ended = time.monotonic()
            pace_then = min(1.0, pace.between(ended - 10, ended) / pace_before)
            load.per_s = 0.8 * capacity * pace_then
            load.run_for(15)
        overload = load.account().between(begin, ended)
        after = load.account().between(ended, time.monotonic())
        recovery_s = load.account().recovery_s(ended)
        started = time.monotonic()
        again = alone(app.url, photos, AT_ONCE, 10).per_s(ANSWERED)
        pace_afterwards = min(1.0, pace.between(started, time.monotonic()) / pace_before)

    if overload.late_s >= 0.1:
        pytest.skip(f"the client was {overload.late_s:.2f} s late: this machine is too busy to tell anything")
    p95_s = overload.quantile_s(ANSWERED, 0.95)
    refused_s = overload.quantile_s(REFUSED, 0.95)
    sizes = own.sizes["app"]
    early = max(size.memory_mib for size in sizes if begin + 10 <= size.at < begin + 40)
    late = max(size.memory_mib for size in sizes if ended - 30 <= size.at < ended)
    held = {
        "p95 of the answered": p95_s <= 2 * unloaded_s + bound_s,
        "refused within 100 ms": refused_s <= 0.1,
        "memory": late <= early * 1.05 + 5,
        "recovery": recovery_s is not None and recovery_s <= 5,
        "throughput afterwards": again >= 0.9 * capacity * pace_afterwards,
    }
    table(
        Account((*overload.attempts, *after.attempts)).row(
            f"{TIMES} times the capacity of {model} for {SECONDS} s",
            seen=f"{overload.count(ANSWERED) / SECONDS:.0f} photos a second are answered, the others "
            "refused at once with a request to come again",
            held=held,
            recovery_s=recovery_s,
            figures={
                "capacity per second": round(capacity, 1),
                "answered per second": round(overload.per_s(ANSWERED), 1),
                "afterwards per second": round(again, 1),
                "pace of the machine in the end": round(pace_then, 2),
                "pace of the machine afterwards": round(pace_afterwards, 2),
                "unloaded p95 ms": round(unloaded_s * 1000, 1),
                "p95 ms of the answered": round(p95_s * 1000),
                "queue bound ms": round(bound_s * 1000),
                "p95 ms of the refused": round(refused_s * 1000, 1),
                "longest ms of a refusal": round(overload.quantile_s(REFUSED, 1.0) * 1000),
                "MiB of the app early": round(early),
                "MiB of the app late": round(late),
                "p95 ms late of the client": round(overload.late_s * 1000, 1),
            },
        )
    )
