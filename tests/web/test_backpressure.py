"""More than the app can do: most is refused at once and with a reason, and what is taken in is answered."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hard.accounting import ANSWERED, REFUSED, Load, Photo, learn

SAMPLES = Path(__file__).parents[2] / "app" / "static" / "samples"
AT_WORK, WAITING, UPLOADS = 2, 4, 6


@pytest.fixture(scope="module")
def photos() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SAMPLES.glob("*.jpg"))]


@pytest.fixture(scope="module")
def web(start: Callable[..., Any], triton: Any) -> Any:
    """An app that takes in little, so that little is needed to be too much."""
    limits = {"MAX_AT_WORK": AT_WORK, "MAX_WAITING": WAITING, "MAX_UPLOADS": UPLOADS}
    return start(triton.http_url, WEB_CONCURRENCY="1", **{name: str(value) for name, value in limits.items()})


@pytest.fixture(scope="module")
def known(web: Any, photos: list[bytes]) -> list[Photo]:
    return learn(web.url, photos)


def measured(web: Any, name: str) -> dict[str, float]:
    """The metric's values by their only label."""
    text = web.request("GET", "/metrics").body.decode()
    return {label: float(value) for label, value in re.findall(rf'^{name}{{\w+="(\w+)"}} (\S+)', text, re.M)}


def test_too_much_is_refused_at_once_and_the_rest_answered(web: Any, known: list[Photo]) -> None:
    with Load(web.url, known, per_s=150) as load:
        load.run_for(3)
        load.per_s = 2
        load.run_for(0.5)
        ended = time.monotonic()
        load.run_for(3)
    account = load.account()
    assert not account.lost
    assert set(account.reasons(REFUSED)) == {"503 overloaded"}
    assert account.count(REFUSED) > 20
    assert account.count(ANSWERED) > 20
    assert account.recovery_s(ended) == 0
    refused_s = account.quantile_s(REFUSED, 0.95)
    assert refused_s < account.quantile_s(ANSWERED, 0.5)
    refusals = measured(web, "web_refusals_total")
    assert sum(refusals.values()) == account.count(REFUSED)
    assert refusals["line"] > 0
    assert set(measured(web, "web_photos_in_flight").values()) == {0.0}
