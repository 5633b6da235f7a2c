"""Versions that are tried, or take each other's place, in two replicas under load: each answer is looked at.

One says something else for about half of the photos, so that an answer tells which version gave it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
from support.life import gourmet
from support.plates import MODEL, PHOTOS, Plates, VersionsUnderLoad, running_plates

from gourmet.serving.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# Clients that pause leave the verbs a part of the processors.
load_on = partial(VersionsUnderLoad, pause_s=0.1)


@pytest.fixture(scope="module")
def plates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plates]:
    with running_plates(tmp_path_factory.mktemp("plates")) as found:
        yield found


def test_a_shadow_is_compared_and_answers_nobody(plates: Plates) -> None:
    wrong = sum(plates.says(place, is_bad=True) != right for place, right in enumerate(plates.right))
    assert 0.35 * len(PHOTOS) < wrong < 0.65 * len(PHOTOS)
    with load_on(plates, {"2"}) as load:
        said = plates.deploy("bad", "--shadow", "50%")
        assert f"{MODEL}/2 answers: the sample is " in said
        wait_until(lambda: plates.counted("compared", "2")["different"] >= 20, 60, "nothing differs")
        assert "serves, shadow 50%" in gourmet("list")
        said = gourmet("canary", "status", "plates")
        assert f"{MODEL}: version 2 is a shadow of 1, 50%" in said
        assert "different where 1 says: " in said
        gourmet("canary", "abandon", "plates")
        time.sleep(1)
    assert load.wrong == {}
    assert set(load.versions) == {"1"}
    assert not plates.counted("abandoned", "2")


def test_a_canary_whose_answers_are_half_wrong_is_left_within_500_requests(plates: Plates) -> None:
    before, left = plates.counted("requests", "2")["answered"], plates.counted("abandoned", "2")
    with load_on(plates, {"2"}) as load:
        plates.deploy("bad", "--canary", "20%")
        wait_until(lambda: plates.counted("abandoned", "2") != left, 120, "it was not left")
        time.sleep(0.5)
        until_then = load.versions["2"]
        time.sleep(3)
        assert load.versions["2"] == until_then
        assert "abandoned by its watch: disagreement" in gourmet("canary", "status", MODEL)
        gourmet("canary", "abandon", "plates")
        time.sleep(1)
    assert load.wrong == {}
    assert 20 <= plates.counted("requests", "2")["answered"] - before <= 500
    assert plates.counted("abandoned", "2") - left == {"disagreement": 1}
    assert "plates_onnx: version 2 is tried no more: " in plates.up.output


def test_a_good_canary_has_its_share_and_is_promoted(plates: Plates) -> None:
    before = plates.counted("requests", "2")["answered"], plates.counted("compared", "2")["same"]
    left = plates.counted("abandoned", "2")
    with load_on(plates, set()) as load:
        plates.deploy("good", "--canary", "30%")
        wait_until(
            lambda: plates.counted("requests", "2")["answered"] >= before[0] + 60, 120, "it has no share"
        )
        ids = [f"visitor-{number}" for number in range(60)]
        found = [
            {plates.ask(PHOTOS[:1], X_Request_Id=each)[0]["model"]["version"] for _ in range(3)}
            for each in ids
        ]
        assert {len(each) for each in found} == {1}
        assert 6 <= sum(each == {"2"} for each in found) <= 32
        gourmet("canary", "promote", "plates")
        wait_until(lambda: plates.ask(PHOTOS[:1])[0]["model"]["version"] == "2", 10, "1 still answers")
    assert load.wrong == {}
    assert plates.counted("compared", "2")["same"] > before[1]
    assert plates.counted("abandoned", "2") == left
    with load_on(plates, set()) as load:
        time.sleep(1)
    assert (load.wrong, set(load.versions)) == ({}, {"2"})


def test_a_version_rolls_out_and_back_and_each_answer_is_of_one(plates: Plates) -> None:
    old = plates.ask(PHOTOS[:1])[0]["model"]["version"]
    new = str(int(old) + 1)
    with load_on(plates, {new}) as load:
        plates.deploy("bad")
        wait_until(lambda: load.versions[new] > 50, 30, f"{new} does not answer")
        gourmet("rollback", "plates")
        time.sleep(1)
    assert load.wrong == {}
    assert set(load.versions) == {old, new}
