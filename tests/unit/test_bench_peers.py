"""The comparison with peers: answers checked one by one, goals for photos, the part of the page."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gourmet.systems.food11 import contract
from harness.load import BenchLoad, BenchWindow
from harness.run import Outcome
from peers import page
from peers.expected import complaint, plain_decode
from peers.page import PhotoComparison
from peers.photo_sets import Kind, drawn

ROW = np.array([0.5, 0.3, 0.1, 0.1] + [0.0] * 7, np.float32)


def answer(**changes: Any) -> bytes:
    stated = {"label": "Bread", "probability": 0.5, "top": [{"label": "Dairy product", "probability": 0.3}]}
    return json.dumps({**stated, **changes}).encode()


def test_a_right_answer_has_nothing_to_complain_about() -> None:
    assert complaint(answer(probability=0.5011), ROW) is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (answer(probability=0.51), "Bread 0.5100 instead of 0.5000"),
        (answer(top=[{"label": "Egg", "probability": 0.3}]), "Egg 0.3000 instead of 0.1000"),
        (answer(label="Dairy product", probability=0.3), "Dairy product instead of Bread"),
        (answer(label="Pizza"), "not an answer of a food model"),
        (answer(probability=float("nan")), "Bread nan instead of 0.5000"),
        (b"<html>", "not an answer of a food model"),
    ],
)
def test_a_wrong_answer_is_said_with_both_values(body: bytes, says: str) -> None:
    assert says in str(complaint(body, ROW))


def window(arm: str, rate: int, turn: int) -> BenchWindow:
    load = BenchLoad(arm, "small", 0 if arm == "limit-fp32" else 8)
    took_ms = (10.0,) * (rate - 2) + (40.0,) * 2
    return BenchWindow(
        load, 1.0, took_ms, 0.0, cpu_ms={"server": 9.0}, memory_mib={"server": 99.0}, turn=turn
    )


def results() -> PhotoComparison:
    rates = {
        "limit-fp32": (100, 101, 100),
        "ours-fp32": (90, 91, 90),
        "fastapi-pool": (80, 81, 80),
        "litserve": (60, 61, 85),
        "ours": (150, 151, 150),
        "fastapi-int8": (140, 141, 140),
    }
    windows = [window(arm, each[turn], turn) for turn in range(3) for arm, each in rates.items()]
    outcome = Outcome(windows, {"BentoML, two workers": "did not start"})
    plan = {"arms": list(rates), "turns": 3, "window_s": 1.0}
    return PhotoComparison(plan, {"small": "small: 64 photos"}, outcome, ["the same"])


def test_goals_are_against_the_limit_and_whichever_peer_was_best() -> None:
    goals = {goal.what: goal for goal in page.goals(results())}
    assert goals["small photos, fp32: ours ÷ the limit"].per_turn == pytest.approx((0.9, 91 / 101, 0.9))
    assert goals["small photos, fp32: ours ÷ the best peer"].per_turn == pytest.approx(
        (90 / 80, 91 / 81, 90 / 85)
    )
    assert goals["small photos, fp32: ours ÷ the limit"].met is True
    assert goals["small photos, fp32: our p99 ÷ the lowest p99 of a peer"].met is True
    same = goals["small photos, the default model: ours ÷ the best peer"]
    assert same.per_turn == pytest.approx((150 / 140, 151 / 141, 150 / 140))


def test_the_report_goes_into_its_part_of_the_page_and_leaves_the_rest(tmp_path: Path) -> None:
    performance = tmp_path / page.PART.page
    begin = "<!-- from here on written by `gourmet bench peers` -->"
    performance.write_text(f"# Ours\n\nby hand\n\n{begin}\nold\n<!-- to here: peers -->\n\nthe end\n")
    page.write(results(), tmp_path)
    text = performance.read_text()
    assert text.startswith("# Ours\n\nby hand\n")
    assert text.endswith("\nthe end\n")
    assert "old" not in text
    assert "| small photos, fp32: ours ÷ the best peer | 1.12 (1.06–1.12)× | at least 1× | met |" in text
    assert "Left out: BentoML, two workers: did not start" in text
    (first, *_) = json.loads((tmp_path / page.DATA).read_text())["windows"]
    assert first["load"] == {"arm": "limit-fp32", "inputs": "small", "level": 0}
    assert (first["turn"], first["per_s"], first["answers"]) == (0, 100, 100)
    assert (tmp_path / page.PICTURE).read_text().startswith("<svg ")


def test_plain_decoding_shows_small_photos_as_ours_does_to_the_last_bit() -> None:
    (photo,) = drawn(Kind(1, 320, 240, 85), 3)
    assert np.array_equal(plain_decode()(photo), contract.SYSTEM.pixels(photo))


def test_every_peer_s_package_is_pinned() -> None:
    pinned = [line for line in page.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line for line in pinned)
    assert {"fastapi", "litserve", "bentoml"} <= {line.split("==")[0].split("[")[0] for line in pinned}


@pytest.mark.slow
def test_an_arm_that_is_not_there_is_named_with_those_that_are() -> None:
    """`gourmet bench peers` runs the program beside the package, and ends as it does."""
    program = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "bench", "peers"]
    ran = subprocess.run([*program, "--arm", "flask"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "Error: --arm 'flask' is not one of limit-fp32, ours-fp32" in ran.stderr
