"""Canaries of a bad model, and versions that take each other's place again and again, under load."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from support.haproxy import ABSENT, HAPROXY
from support.life import gourmet
from support.plates import Plates, VersionsUnderLoad, running_plates
from support.table import Keep, TableRow
from support.web_app import StartWeb

from gourmet.serving.waiting import wait_until

TURNS = 3


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.skipif(not HAPROXY, reason=ABSENT))],
    ids=["own choice", "HAProxy"],
)
def plates(
    request: pytest.FixtureRequest, start: StartWeb, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plates]:
    folder = tmp_path_factory.mktemp("plates")
    with running_plates(folder, start if request.param else None) as found:
        yield found


def row(tried: str, plates: Plates, loads: list[VersionsUnderLoad], seen: str, survived: bool) -> TableRow:
    answered = sum(each.versions.total() for each in loads)
    wrong = sum((each.wrong for each in loads), Counter[str]())
    return TableRow(
        tried=tried + (" behind HAProxy" if len(plates.webs) > 1 else ""),
        times=len(loads),
        requests=answered + wrong.total(),
        answered=answered,
        seen=seen,
        survived=survived and not wrong,
        wrong=dict(wrong),
    )


@pytest.mark.parametrize("share", ["10%", "50%", "100%"])
def test_a_canary_whose_answers_are_half_wrong_is_left(plates: Plates, share: str, table: Keep) -> None:
    loads, took = [], []
    for _ in range(TURNS):
        before = plates.counted("requests", "2")["answered"]
        left = plates.counted("abandoned", "2").total() + len(plates.webs)  # each by a watch of its own
        with VersionsUnderLoad(plates, {"2"}) as load:
            plates.deploy("bad", "--canary", share)
            is_left = partial(lambda left: plates.counted("abandoned", "2").total() == left, left)
            wait_until(is_left, 120, "it was not left")
            time.sleep(1)
            took.append(plates.counted("requests", "2")["answered"] - before)
            gourmet("canary", "abandon", "plates")
            time.sleep(1)
        loads.append(load)
    seen = f"left after {', '.join(map(str, took))} canary requests"
    table(
        row(
            f"a canary of {share} whose answers are half wrong",
            plates,
            loads,
            seen,
            max(took) <= 500 and not plates.turned_away,
        )
    )


def test_versions_roll_out_and_back_without_a_failed_request(plates: Plates, table: Keep) -> None:
    loads = []
    for _ in range(TURNS):
        with VersionsUnderLoad(plates, {"2"}) as load:
            plates.deploy("bad")
            time.sleep(2)
            gourmet("rollback", "plates")
            time.sleep(2)
        loads.append(load)
    both = all(set(each.versions) == {"1", "2"} for each in loads)
    table(
        row(
            "a version rolls out over all replicas, and back",
            plates,
            loads,
            "by both versions",
            both and not plates.turned_away,
        )
    )
