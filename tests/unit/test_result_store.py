"""Results survive a stop; results of another run are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gourmet.errors import UsageError
from gourmet.result_store import ResultStore


@dataclass(frozen=True)
class StoredRates:
    rates: tuple[float, ...]
    words: str = ""


PLAN = {"turns": 2, "weights": Path("a.pth"), "load": StoredRates((1.0,))}


def test_a_stopped_run_resumes_with_its_results(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "new", PLAN, StoredRates)
    assert store.get(0, "arm") is None
    store.put(StoredRates((1.5, 2.0), "пирог"), 0, "arm")
    again = ResultStore(tmp_path / "new", PLAN, StoredRates)
    assert again.get(0, "arm") == StoredRates((1.5, 2.0), "пирог")
    assert again.get(1, "arm") is None
    assert list(again) == list(store)


def test_a_folder_of_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    ResultStore(tmp_path, PLAN, StoredRates)
    with pytest.raises(
        UsageError, match="has results of another run, with another turns: name another folder"
    ):
        ResultStore(tmp_path, PLAN | {"turns": 3}, StoredRates)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_line_that_a_crash_cut_off_is_measured_again(tmp_path: Path, kept: int) -> None:
    store = ResultStore(tmp_path, PLAN, StoredRates)
    for number in range(kept + 1):
        store.put(StoredRates((float(number),)), number)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    resumed = ResultStore(tmp_path, PLAN, StoredRates)
    assert len(resumed) == kept
    assert resumed.get(kept) is None
    resumed.put(StoredRates((9.0,)), kept)
    assert len(ResultStore(tmp_path, PLAN, StoredRates)) == kept + 1


def test_without_a_folder_results_are_held_in_memory() -> None:
    store = ResultStore(None, PLAN, StoredRates)
    store.put(StoredRates((1.0,)), "arm")
    assert store.get("arm") == StoredRates((1.0,))
