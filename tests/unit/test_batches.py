"""Requests that share a run: each gets its own rows, and one that fails fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gourmet.served.batches import Executor, Feeds, Job, UnusableTensors, _answer_all, padded


class Doubling:
    """A network that doubles rows; 13 fails its run. It notes how many rows each run had."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, feeds: Feeds, requested: Sequence[str]) -> list[Any]:
        self.rows.append(len(feeds["x"]))
        if (feeds["x"] == 13).any():
            raise UnusableTensors("13 cannot be computed")
        outputs = {"double": 2 * feeds["x"], "negative": -feeds["x"]}
        return [outputs[name] for name in requested]


def job(*values: float, width: int = 1, requested: Sequence[str] = ("double",)) -> Job:
    return Job({"x": np.repeat(np.array(values, np.float32)[:, np.newaxis], width, axis=1)}, requested)


def test_requests_of_one_shape_share_a_run_and_get_their_own_rows_and_outputs() -> None:
    run = Doubling()
    jobs = [job(1, 2), job(3, width=2), job(4), job(5, requested=("negative",))]
    _answer_all(jobs, run, batched=True)
    assert run.rows == [4, 1], "rows of another width are a run of their own"
    assert [list(one.answer) for one in jobs] == [["double"]] * 3 + [["negative"]]
    answers = [next(iter(one.answer.values())).tolist() for one in jobs]
    assert answers == [[[2], [4]], [[6, 6]], [[8]], [[-5]]]


def test_a_request_that_fails_its_run_fails_alone() -> None:
    jobs = [job(1), job(13), job(2)]
    _answer_all(jobs, Doubling(), batched=True)
    assert [one.error and str(one.error) for one in jobs] == [None, "13 cannot be computed", None]
    assert jobs[2].answer["double"].tolist() == [[4]]


def test_without_batching_each_request_is_a_run() -> None:
    run = Doubling()
    _answer_all([job(1), job(2), job(3, 4)], run, batched=False)
    assert run.rows == [1, 1, 2]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_model_that_returns_another_number_of_rows_is_an_error(rows: int) -> None:
    jobs = [job(1, 2)]
    _answer_all(jobs, lambda feeds, requested: [np.zeros((rows, 1))], batched=True)
    assert "for 2 rows; a model with max_batch_size above 0 must return one row" in str(jobs[0].error)


def test_padded_runs_have_one_size_and_answers_of_the_rows_that_were_asked() -> None:
    run = Doubling()
    padded_run = padded(run, 4)
    for count in (3, 1, 2):
        (doubled,) = padded_run({"x": np.full((count, 2), count, np.float32)}, ["double"])
        assert doubled.tolist() == [[2 * count] * 2] * count
    assert run.rows == [4, 4, 4]


class Request:
    """What Triton's Python backend hands to a model; it counts how often it was checked."""

    checked = 0

    def __init__(self, *values: float, is_cancelled: bool = False) -> None:
        self._values, self._is_cancelled = values, is_cancelled

    def requested_output_names(self) -> list[str]:
        return ["double"]

    def inputs(self) -> list[Any]:
        array = np.array(self._values, np.float32)[:, np.newaxis]
        return [SimpleNamespace(name=lambda: "x", as_numpy=lambda: array)]

    def is_cancelled(self) -> bool:
        Request.checked += 1
        return self._is_cancelled


def error(message: str, code: str) -> tuple[str, str]:
    return code, message


error.INVALID_ARG, error.INTERNAL, error.CANCELLED = "invalid", "internal", "cancelled"  # type: ignore[attr-defined]
PB_UTILS = SimpleNamespace(
    TritonError=error,
    Tensor=lambda name, array: (name, array.tolist()),
    InferenceResponse=lambda tensors=(), error=None: error or tensors,
)
CONFIG = {"max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32"}]}


def test_each_request_has_a_response_or_an_error_of_its_kind() -> None:
    executor = Executor(PB_UTILS, Doubling(), CONFIG)
    assert executor.execute([Request(1, 2), Request(13)]) == [
        [("double", [[2], [4]])],
        ("invalid", "13 cannot be computed"),
    ]
    broken = Executor(PB_UTILS, lambda feeds, requested: 1 / 0, CONFIG)  # type: ignore[arg-type]
    assert broken.execute([Request(1)]) == [("internal", "division by zero")]


def test_while_one_is_cancelled_each_request_is_checked_and_else_ten_a_second() -> None:
    executor = Executor(PB_UTILS, Doubling(), CONFIG)
    Request.checked = 0
    gone = [Request(1, is_cancelled=True) for _ in range(3)]
    answers = executor.execute([*gone, *[Request(2) for _ in range(50)]])
    assert [answer[0] for answer in answers[:3]] == ["cancelled"] * 3
    assert all(answer == [("double", [[4]])] for answer in answers[3:])
    assert 4 <= Request.checked < 30, "the first that is not cancelled ends it"
