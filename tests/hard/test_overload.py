"""Five times as much as the stack can do, for two minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from support.accounting import ANSWERED, REFUSED, Account, KnownPhoto, PhotoLoad, learn

from app.web.settings import Settings

TIMES = 5
SECONDS = 120
WORKERS = 2
# One worker may happen to accept all of them: one address has 8 places and half of the 32 waiting places.
AT_ONCE = 24


@pytest.fixture(scope="module", params=["food_classifier", "food_classifier_onnx"])
def web(request: pytest.FixtureRequest, start: Callable[..., Any], triton: Any) -> Any:
    at_work = str(Settings().max_at_work)
    app = start(triton.http_url, FOOD11_MODEL_NAME=request.param, MAX_AT_WORK=at_work)
    yield app
    app.stop()


def alone(url: str, photos: list[KnownPhoto], at_once: int, seconds: float) -> Account:
    with PhotoLoad(url, photos, at_once=at_once) as load:
        time.sleep(seconds)
    return load.account()


def memory_mib(app: Any) -> float:
    root = psutil.Process(app.process.pid)
    return sum(process.memory_full_info().uss for process in (root, *root.children(recursive=True))) / 2**20


def test_photos_beyond_the_capacity_are_refused_at_once_and_the_others_answered_in_time(
    web: Any, drawings: list[bytes], note: Callable[[object], None]
) -> None:
    photos = learn(web.url, drawings)
    alone(web.url, photos, 200, 10)  # so that nothing is done for the first time, by any thread
    unloaded_s = alone(web.url, photos, 1, 10).quantile_s(ANSWERED, 0.95)
    full = alone(web.url, photos, AT_ONCE, 15)
    assert full.count(ANSWERED) == len(full.attempts), full.reasons(REFUSED) + full.lost
    capacity = full.per_s(ANSWERED)
    with PhotoLoad(web.url, photos, capacity * TIMES) as load:
        begin = time.monotonic()
        time.sleep(30)
        early_mib = memory_mib(web)
        time.sleep(SECONDS - 30)
        late_mib = memory_mib(web)
        ended = time.monotonic()
        load.per_s = capacity / 4
        time.sleep(15)
    overload = load.account().between(begin, ended)
    p95_s, refused_s = overload.quantile_s(ANSWERED, 0.95), overload.quantile_s(REFUSED, 0.95)
    note(f"{capacity:.0f} photos/s without overload, {overload.per_s(ANSWERED):.0f} with; "
         f"p95 {1000 * unloaded_s:.0f} and {1000 * p95_s:.0f} ms; refused within {1000 * refused_s:.0f} ms; "
         f"{early_mib:.0f} MiB early, {late_mib:.0f} late; client {overload.late_s:.2f} s late")  # fmt: skip
    assert not load.account().lost
    assert set(overload.reasons(REFUSED)) == {"503 overloaded"}
    if overload.late_s < 0.1:  # else these are the client's own times
        places = WORKERS * (Settings().max_at_work + Settings().max_waiting)
        assert p95_s <= 2 * (unloaded_s + places / overload.per_s(ANSWERED))
        assert refused_s <= 0.1
    assert late_mib <= early_mib * 1.05 + 5
    recovery_s = load.account().recovery_s(ended)
    assert recovery_s is not None
    assert recovery_s <= 10
