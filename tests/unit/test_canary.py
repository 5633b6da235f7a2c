"""A version that is tried: which requests it gets, what its watch finds; it costs nobody an answer."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.listener import Listen, answered, http, listen

from app.asking import AppTriton
from app.canary import PROBE, Canaries, CanaryWatch, at_least
from app.classifier import Classifier
from app.core.errors import InferenceFailed, ModelNotReady, RefusedByModel, ServingError, TritonTooSlow
from app.core.metrics import DIRECTORY_ENV
from gourmet.client.deadline import Deadline
from gourmet.client.triton import Answer
from gourmet.contracts import CANARY_PARAMETER, Canary, ModelInfo
from gourmet.serving.waiting import wait_until
from gourmet.systems.food11.contract import SYSTEM

__all__ = ["listen"]  # the fixture
BEGAN = "2026-11-25T12:00:00.000+00:00"
TRIED = Canary("1", "2", 0.1, False, 0.3, BEGAN, {"threshold": "0.9"})
SHADOW = Canary("1", "2", 1.0, True, 0.3, BEGAN, {})
ALL = Canary("1", "2", 1.0, False, 0.3, BEGAN, {})


def ignored(*_: str) -> None:
    pass


def watch(canary: Canary = TRIED, count: Callable[..., object] = ignored) -> CanaryWatch:
    return CanaryWatch("m", canary, count)


def test_a_share_of_the_requests_is_taken_and_of_the_same_id_always_in_every_process() -> None:
    ids = [str(number) for number in range(20_000)]
    taken = [watch().takes(each) for each in ids]
    assert taken == [watch().takes(each) for each in ids]
    assert 0.09 < sum(taken) / len(taken) < 0.11
    later = Canary("1", "2", 0.1, False, 0.3, "2026-11-26", {})
    again = [watch(later).takes(each) for each in ids]
    both = sum(one and other for one, other in zip(taken, again, strict=True))
    assert both < sum(taken) / 5, "another canary takes other clients"


def test_what_half_of_the_answers_say_otherwise_is_left_within_160_comparisons() -> None:
    for seed in range(50):
        chance, mine = random.Random(seed), watch()
        for _ in range(160):
            mine.compared("different" if chance.random() < 0.5 else "same")
        assert "answers differ from version 1's, 30% may" in mine.reason
        assert not any(mine.takes(str(each)) for each in range(1000))


def test_what_a_tenth_of_the_answers_say_otherwise_goes_on() -> None:
    for seed in range(20):
        chance, mine = random.Random(seed), watch()
        for _ in range(2000):
            mine.compared("different" if chance.random() < 0.1 else "same")
        assert not mine.reason


def test_comparisons_that_failed_or_were_dropped_say_nothing() -> None:
    mine = watch()
    for _ in range(1000):
        mine.compared("failed")
        mine.compared("dropped")
    assert not mine.reason


@pytest.mark.parametrize(("old", "new", "reason"), [(0.0, 0.2, True), (0.2, 0.25, False), (0.0, 0.0, False)])
def test_errors_are_judged_against_those_of_the_version_that_serves(
    old: float, new: float, reason: bool
) -> None:
    chance, mine = random.Random(1), watch()
    for number in range(3000):
        version, share = ("2", new) if number % 4 == 0 else ("1", old)
        mine.asked(version, "failed" if chance.random() < share else "answered", 0.01)
    assert bool(mine.reason) is reason
    if reason:
        assert "requests failed" in mine.reason


@pytest.mark.parametrize(("seconds", "left"), [(0.015, False), (0.1, True)])
def test_one_that_takes_several_times_as_long_is_left(seconds: float, left: bool) -> None:
    mine = watch()
    for _ in range(100):
        mine.asked("1", "answered", 0.01)
        mine.asked("2", "answered", seconds)
    assert mine.reason == ("half of its answers take 0.100 s, of version 1 0.010 s" if left else "")


def test_a_server_without_it_is_no_fault_of_it() -> None:
    mine = watch()
    for _ in range(1000):
        mine.asked("2", "away")
    assert not mine.reason


def test_a_shadow_is_never_left_for_what_it_says() -> None:
    mine = watch(SHADOW)
    for _ in range(100):
        mine.compared("different")
    assert not mine.reason


def test_all_workers_of_an_app_leave_what_one_of_them_left_and_it_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_ENV, str(tmp_path))
    counted: list[tuple[str, ...]] = []
    one, other = (watch(count=lambda *what: counted.append(what)) for _ in range(2))
    taken = next(each for each in map(str, range(1000)) if other.takes(each))
    for _ in range(60):
        one.compared("different")
    assert one.reason
    assert not other.takes(taken)
    assert other.reason == one.reason
    for _ in range(60):
        other.compared("different")
    assert [each for each in counted if each[0] == "abandoned"] == [
        ("abandoned", "m", "2", BEGAN, "disagreement")
    ]
    again = CanaryWatch("m", Canary("1", "2", 1.0, False, 0.3, "2026-11-26", {}), ignored)
    assert again.takes(taken), "which was deployed after that"


def test_a_share_is_believed_the_more_the_more_there_were() -> None:
    assert at_least(0, 0) == 0
    assert at_least(5, 10) < at_least(50, 100) < at_least(500, 1000) < 0.5


class PlayedTriton:
    """Version 1 says `a`, version 2 whatever it is set to; both after a while."""

    def __init__(self, new: str | ServingError = "a", old: str | ServingError = "a") -> None:
        self.says = {"m/1": old, "m/2": new}
        self.takes_s = {"m/1": 0.0, "m/2": 0.0}
        self.asked: list[str] = []

    def infer(self, target: str, inputs: object, deadline: Deadline, request_id: str) -> Answer:
        self.asked.append(target)
        time.sleep(self.takes_s[target])
        said = self.says[target]
        if isinstance(said, ServingError):
            raise said
        return Answer({"label": np.array([said])}, target[-1], 0)


def say(info: ModelInfo, answer: Answer) -> tuple[str, str]:
    label = str(answer.outputs["label"][0])
    return label, label


class Asked:
    """Canaries over such a Triton, and what they counted."""

    def __init__(self, triton: PlayedTriton, canary: Canary) -> None:
        self.triton, self.counted = triton, Counter[tuple[str, ...]]()
        self.lock = threading.Lock()
        self.canaries = Canaries(triton, self._count)  # type: ignore[arg-type]
        parameters = {CANARY_PARAMETER: canary.text()}
        self.info = ModelInfo("m", (), (), parameters, "1", pinned=True, canary=canary)

    def _count(self, what: str, model: str, version: str, began: str, how: str) -> None:
        assert began == BEGAN
        with self.lock:
            self.counted[what, model, version, how] += 1

    def version(self, request_id: str = "x", client: str = "") -> str:
        info, answer = self.canaries.infer(self.info, {}, Deadline(5, client=client), request_id, say)
        assert info.version == answer.model_version
        return info.version

    def compared(self, outcome: str) -> int:
        return self.counted["compared", "m", "2", outcome]


def test_what_is_tried_answers_and_is_compared_beside() -> None:
    asked = Asked(PlayedTriton("b"), ALL)
    assert asked.version() == "2"
    wait_until(lambda: asked.compared("different") == 1, 5, "it was not compared")
    assert asked.counted["differences", "m", "2", "a"] == 1
    assert asked.triton.asked == ["m/2", "m/1"]


def test_a_shadow_is_asked_and_never_answers() -> None:
    asked = Asked(PlayedTriton("b"), SHADOW)
    assert asked.version() == "1"
    wait_until(lambda: asked.compared("different") == 1, 5, "it was not compared")


def test_whether_a_model_answers_is_asked_of_the_version_that_serves() -> None:
    asked = Asked(PlayedTriton(), ALL)
    assert [asked.version(each) for each in (PROBE, "")] == ["1", "1"]
    assert not asked.counted


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InferenceFailed("no"), "failed"),
        (RefusedByModel("no"), "failed"),
        (TritonTooSlow("no"), "failed"),
        (ModelNotReady("m/2", []), "away"),
    ],
    ids=["failed", "refused", "slow", "away"],
)
def test_where_what_is_tried_has_no_answer_the_version_that_serves_has(
    error: ServingError, outcome: str
) -> None:
    asked = Asked(PlayedTriton(error), ALL)
    assert asked.version() == "1"
    assert asked.counted["requests", "m", "2", outcome] == 1
    assert asked.counted["requests", "m", "1", "answered"] == 1


def test_a_photo_that_both_refuse_is_no_fault_of_either() -> None:
    refused = RefusedByModel("not a photo")
    asked = Asked(PlayedTriton(refused, refused), ALL)
    with pytest.raises(RefusedByModel):
        asked.version()
    assert not asked.counted


def test_one_that_always_fails_is_left_after_a_few_and_costs_nobody_an_answer() -> None:
    asked = Asked(PlayedTriton(InferenceFailed("no")), ALL)
    assert {asked.version(str(each)) for each in range(100)} == {"1"}
    assert asked.counted["requests", "m", "2", "failed"] == 5
    assert asked.counted["abandoned", "m", "2", "errors"] == 1


@pytest.mark.parametrize("fault", ["fails", "stands still"])
def test_a_shadow_that_fails_or_stands_still_slows_no_answer(fault: str) -> None:
    asked = Asked(PlayedTriton(InferenceFailed("no") if fault == "fails" else "a"), SHADOW)
    asked.triton.takes_s["m/2"] = 1.0
    began = time.monotonic()
    assert {asked.version(str(each)) for each in range(200)} == {"1"}
    assert time.monotonic() - began < 1
    # One is under way and four wait.
    assert asked.compared("dropped") >= 200 - 6


def test_one_whose_photos_are_slow_keeps_nobody_else_s_from_being_compared() -> None:
    asked = Asked(PlayedTriton(), ALL)
    asked.triton.takes_s["m/1"] = 0.2
    for each in range(50):
        asked.version(str(each), "greedy")
    assert (before := asked.compared("dropped")) > 40
    asked.version("x", "another")
    assert asked.compared("dropped") == before


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[]",
        *(
            json.dumps(json.loads(ALL.text()) | {name: value})
            for name, value in (
                ("share", "0.1"),
                ("share", 30),
                ("share", None),
                ("tolerance", float("nan")),
                ("new", ["2"]),
                ("new", "../x"),
                ("new", "1"),
                ("is_shadow", "no"),
                ("began", "x" * 100_000),
                ("parameters", ["threshold"]),
                ("parameters", {"threshold": 0.9}),
            )
        ),
    ],
    ids=lambda text: text[-60:],
)
def test_a_config_that_says_of_a_canary_what_is_none_tries_nothing(text: str) -> None:
    """It is Triton's, where anybody who deploys may write, and each photo of its model reads it."""
    config = {"parameters": {CANARY_PARAMETER: {"string_value": text}}}
    metadata = {"name": "m", "inputs": [], "outputs": [], "versions": ["1", "2"]}
    info = ModelInfo.from_triton(metadata, config)
    assert (info.canary, info.version, info.at("2").target) == (None, "2", "m/2")


METADATA = {
    "name": "m",
    "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 3, 224, 224]}],
    "outputs": [{"name": "PROBABILITIES", "datatype": "FP32", "shape": [-1, 11]}],
}


def triton(versions: list[str], canary: Canary | None) -> dict[str, bytes]:
    """What a Triton answers that has these versions, of which each answers with a class of its number."""
    text = {CANARY_PARAMETER: {"string_value": canary.text()}} if canary else {}
    config = http({"parameters": {"threshold": {"string_value": "0.5"}, **text}})

    def of(version: str) -> bytes:
        return answered([float(each == int(version)) for each in range(11)], version)

    gone = http({"error": "Request for unknown model: 'm' version is not found"}, "404 Not Found")
    found = {"/ready": http({}), "/config": config, "/m": http(METADATA | {"versions": versions})}
    for each in ("1", "2"):
        there = each in versions
        found |= {
            f"/m/versions/{each}": http(METADATA | {"versions": [each]}) if there else gone,
            f"/m/versions/{each}/infer": of(each) if there else gone,
        }
        if not there:
            found = {f"/m/versions/{each}/ready": gone, f"/m/versions/{each}/config": gone, **found}
    stats = [{"name": "m", "version": each, "inference_stats": {}} for each in versions]
    found |= {"/m/infer": of(versions[-1]), "/stats": http({"model_stats": stats}), "/index": http([])}
    return found


def classifier_of(url: str) -> Classifier:
    return Classifier(AppTriton(url), {"food11": SYSTEM}, {"food11": "m"})


def classified(classifier: Classifier, request_id: str = "x", model: str = "") -> tuple[str, int, float]:
    found = classifier.classify(SYSTEM.sample(), Deadline(5), request_id, model)
    return found.version, found.class_id, found.threshold


def test_an_answer_has_the_version_and_the_numbers_of_who_gave_it(listen: Listen) -> None:
    classifier = classifier_of(listen(triton(["1", "2"], TRIED)).url)
    ids = [str(each) for each in range(60)]
    found = {classified(classifier, each) for each in ids}
    assert found == {("1", 1, 0.5), ("2", 2, 0.9)}
    assert {classified(classifier, each, "m/1") for each in ids} == {("1", 1, 0.5)}
    assert {classified(classifier, each, "m/2") for each in ids} == {("2", 2, 0.9)}
    assert [each.info.target for each in classifier.models(Deadline(5))] == []  # it names no system


def test_who_is_answered_by_what_began_meanwhile_is_answered_by_the_version_that_serves(
    listen: Listen,
) -> None:
    """The app knows a model for seconds; asked without a version, Triton answers by the newest."""
    listener = listen(triton(["1"], None))
    classifier = classifier_of(listener.url)
    assert classified(classifier) == ("1", 1, 0.5)
    none = Canary("1", "2", 0.0, False, 0.3, BEGAN, {})
    listener.script |= triton(["1", "2"], none)
    assert classified(classifier) == ("1", 1, 0.5)


@pytest.mark.parametrize("left", ["1", "2"], ids=["abandoned", "promoted"])
def test_while_it_ends_all_are_answered(listen: Listen, left: str) -> None:
    listener = listen(triton(["1", "2"], TRIED))
    classifier = classifier_of(listener.url)
    classified(classifier)
    listener.script.clear()
    listener.script |= triton([left], None)
    found = {classified(classifier, str(each))[:2] for each in range(60)}
    assert found == {(left, int(left))}


def test_a_config_that_nobody_here_wrote_is_as_if_it_said_nothing() -> None:
    for text in ("", "yes", "[]", "{}", json.dumps({"old": "1"})):
        assert Canary.of({CANARY_PARAMETER: text}) is None
    assert Canary.of({CANARY_PARAMETER: TRIED.text()}) == TRIED
