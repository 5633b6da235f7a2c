"""Every row gets its own answer, however rows are cut into requests and requests into batches.

The labs this project grew out of answered one row of sixteen, and nobody's benchmark noticed.
"""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gourmet.client.model_config import as_json
from gourmet.repository import DEFAULT, read_config
from gourmet.repository.config_change import Change, changed
from gourmet.systems.food11 import contract
from gourmet.systems.food11.contract import SYSTEM

ROWS = int(os.environ.get("GOURMET_ROWS", "2000"))
IN_FLIGHT = 24
BROKEN = [b"", b"no picture", b"\xff\xd8\xff\xe0 only the first bytes of a JPEG", b"<svg></svg>"]


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    return SYSTEM.examples(48, 11, (96, 96))


@dataclass
class Asker:
    """Sends requests of several rows, many at a time, and hands back what came for each."""

    client: triton_grpc.InferenceServerClient
    pictures: list[bytes]
    expected: np.ndarray
    answers: queue.Queue = field(default_factory=queue.Queue)

    def ask(self, requests: list[list[int]]) -> list[np.ndarray | str]:
        """Rows are indices of pictures; a negative one is a broken picture."""
        got: list[np.ndarray | str] = [""] * len(requests)
        waiting = 0
        for number, rows in enumerate(requests):
            blobs = [self.pictures[row] if row >= 0 else BROKEN[-row % len(BROKEN)] for row in rows]
            tensor = triton_grpc.InferInput("INPUT_IMAGE", [len(rows), 1], "BYTES")
            tensor.set_data_from_numpy(np.array(blobs, np.object_).reshape(-1, 1))
            self.client.async_infer(
                "food_classifier",
                [tensor],
                lambda result, error, number=number: self.answers.put((number, result, error)),
            )
            waiting += 1
            while waiting >= IN_FLIGHT or (waiting and number == len(requests) - 1):
                answered, result, error = self.answers.get(timeout=60)
                got[answered] = str(error) if error else result.as_numpy("PROBABILITIES")
                waiting -= 1
        return got

    def check(self, requests: list[list[int]]) -> None:
        for rows, answer in zip(requests, self.ask(requests), strict=True):
            if min(rows) < 0:
                # The first one, or one behind it where that one goes to a process that decodes.
                broken = [index for index, row in enumerate(rows) if row < 0]
                assert isinstance(answer, str)
                assert any(f"row {index} of {len(rows)}:" in answer for index in broken)
                assert "INVALID_ARGUMENT" in answer
            else:
                assert not isinstance(answer, str), answer
                assert answer.shape == (len(rows), len(contract.SYSTEM.labels))
                np.testing.assert_allclose(answer, self.expected[rows], atol=2e-3)


@pytest.fixture(scope="module", params=["as shipped", "merged as far as can be"])
def asker(request, triton, pictures) -> Iterator[Asker]:
    with triton_grpc.InferenceServerClient(triton.grpc_url) as client:
        if request.param != "as shipped":
            shipped = as_json(read_config(DEFAULT / "food_classifier"))
            change = Change(delay_us=5000, preferred_batches=(16,))
            client.load_model("food_classifier", config=json.dumps(changed(shipped, change)))
        asker = Asker(client, pictures, np.empty(0))
        asker.expected = np.concatenate(asker.ask([[row] for row in range(len(pictures))]))
        yield asker
        if request.param != "as shipped":
            client.load_model("food_classifier", config=json.dumps(shipped))


def test_the_test_pictures_have_distinct_answers(asker) -> None:
    # Without this, a wrong row could pass for a right one.
    distance = np.abs(asker.expected[:, None] - asker.expected[None]).max(axis=2)
    np.fill_diagonal(distance, 1)
    assert distance.min() > 4e-3


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(-4, 47), min_size=1, max_size=16), min_size=1, max_size=12))
def test_any_partition_of_rows_into_requests_gives_each_row_its_own_answer(asker, requests) -> None:
    asker.check(requests)


@pytest.mark.slow
def test_thousands_of_rows_of_which_one_in_a_hundred_is_broken(asker) -> None:
    random = np.random.default_rng(20)
    rows = random.integers(0, len(asker.pictures), ROWS // 2)
    rows[random.random(len(rows)) < 0.01] = -1
    requests, first = [], 0
    while first < len(rows):
        size = int(random.integers(1, 17))
        requests.append([int(row) for row in rows[first : first + size]])
        first += size
    asker.check(requests)
