"""Decoders that never return, crash or take a gigabyte: each costs its own request, and nobody else's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.accounting import ANSWERED, PhotoLoad, learn
from support.planted import gif, plant
from support.repeating import Repeating
from support.stack import SAMPLES
from support.table import Keep
from support.triton import RunningTriton, run_triton, some_models

SECONDS = 60

FAULTS = ("never returns", "sleeps", "crashes", "takes a gigabyte")


@pytest.fixture
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return plant(tmp_path_factory.mktemp("fault"))


@pytest.fixture
def planted(faults: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in faults.items():
            patch.setenv(name, value)
        yield from run_triton(some_models(tmp_path_factory.mktemp("planted") / "models", "food_classifier"))


@pytest.mark.timeout(600)
def test_stuck_decoders(
    start: Callable[..., Any], planted: RunningTriton, faults: dict[str, str], table: Keep
) -> None:
    web = start(planted.http_url, **faults)
    photos = learn(web.url, [path.read_bytes() for path in SAMPLES])
    said: Counter[str] = Counter()

    def send(sender: int, _: int) -> None:
        answer = web.predict(gif(FAULTS[sender]))
        said[f"{answer.status} {answer.json['error']['code']}"] += 1

    with PhotoLoad(web.url, photos, per_s=5) as load:
        load.run_for(5)
        with Repeating(send, len(FAULTS)):
            load.run_for(SECONDS)
        load.run_for(5)
    account = load.account()
    table(
        account.row(
            f"pictures whose decoder never returns, crashes or takes a gigabyte, for {SECONDS} s",
            seen="its sender gets the refusal; the photos of all others are answered",
            held={"all are answered": account.count(ANSWERED) == len(account.attempts)},
            figures={f"stuck ones answered {what}": count for what, count in said.items()},
        )
    )
    assert said.total() > len(FAULTS)
