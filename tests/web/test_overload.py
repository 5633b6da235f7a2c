"""Five times as much as the app can do: photos are refused with a reason or answered, and memory stays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.accounting import ANSWERED, REFUSED, PhotoLoad, learn
from support.web_app import StartWeb

TIMES = 5
SECONDS = 60
PHOTOS = sorted((Path(__file__).parents[1] / "drawings").glob("*.jpg"))


def memory_mib(app: Any) -> float:
    root = psutil.Process(app.process.pid)
    return sum(process.memory_full_info().uss for process in (root, *root.children(recursive=True))) / 2**20


@pytest.mark.nightly
def test_photos_beyond_the_capacity_are_refused_and_the_others_answered_in_time(
    start: StartWeb, triton: Any
) -> None:
    web = start(triton.http_url, MAX_WAITING="16", MAX_WAIT_S="5")
    photos = learn(web.url, [path.read_bytes() for path in PHOTOS])
    with PhotoLoad(web.url, photos, at_once=24) as load:
        time.sleep(15)
    capacity = load.account().per_s(ANSWERED)
    with PhotoLoad(web.url, photos, capacity * TIMES) as load:
        begin = time.monotonic()
        time.sleep(SECONDS / 2)
        early_mib = memory_mib(web)
        time.sleep(SECONDS / 2)
        late_mib, ended = memory_mib(web), time.monotonic()
        load.per_s = capacity / 4
        time.sleep(15)
    overload = load.account().between(begin, ended)
    assert not load.account().lost
    assert set(overload.reasons(REFUSED)) == {"503 overloaded"}
    assert overload.count(ANSWERED) > 0
    assert overload.quantile_s(ANSWERED, 0.95) <= 5 + 10, "the longest wait, and the deadline"
    assert late_mib <= early_mib * 1.05 + 5
    recovery_s = load.account().recovery_s(ended)
    assert recovery_s is not None
    assert recovery_s <= 10
