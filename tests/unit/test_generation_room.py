"""A generation room over made-up pictures: encoding beside the loop, forced prompts, memories of one size."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax
from support.eventually import eventually

from gourmet.generation.answers import GrowingAnswer
from gourmet.generation.engine import Engine, Floats, Likeliest
from gourmet.generation.loop import Row, TooManyRows
from gourmet.generation.scheduler import ClientQueues, DecodeScheduler

Pixels = npt.NDArray[np.float32]
PROMPT = [2, 3, 4]
PLACES, WORDS, END = 49, 31, 1
KEPT = (1, 2, 1, PLACES, WORDS)  # layers, keys and values, heads
WITHIN_S = 30


class Pictures(Engine):
    """Every place of a picture votes for words, each word for the next, and no word is liked twice.

    So an answer depends on the picture, the prompt and all words before. A test may get between.
    """

    positions = PLACES

    def __init__(self) -> None:
        draw = np.random.default_rng(3)
        self._seen, self._next = draw.normal(0, 3, (3, WORDS)), draw.normal(0, 1.5, (WORDS, WORDS))
        self._ends = np.zeros((WORDS + 1, WORDS))
        self._ends[:, END], self._ends[:, 0] = np.linspace(-4, 5, WORDS + 1), -1e4  # 0 is the start
        self.encoded: list[int] = []
        self.before_encoding: Callable[[Sequence[Pixels]], object] = lambda sources: None
        self.before_step: Callable[[], object] = lambda: None

    def encode(self, sources: Sequence[Pixels]) -> Sequence[Floats]:
        self.before_encoding(sources)
        self.encoded.append(len(sources))
        return [np.broadcast_to((source @ self._seen).astype(np.float32), KEPT) for source in sources]

    def step(self, tokens: Any, lengths: Any, cache: Floats, memory: Floats, mask: Any) -> Likeliest:
        self.before_step()
        one_hot, places = np.eye(WORDS, dtype=np.float32)[tokens], np.arange(cache.shape[4])
        picture = np.einsum("nlkhpv,np->nv", memory, mask) / mask.sum(axis=1, keepdims=True)
        before = np.einsum("nlkhpv,np->nv", cache, places < lengths[:, None]) + one_hot
        wishes = picture + self._next[tokens] + self._ends[lengths] - 3 * before
        # Rounded, so that no row has another last digit among others than alone.
        scores = log_softmax(wishes, axis=1).round(4).astype(np.float32)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :8]
        added = np.broadcast_to(one_hot[:, None, None, None, None], (len(tokens), 1, 2, 1, 1, WORDS))
        return Likeliest(best.astype(np.int32), np.take_along_axis(scores, best, 1), added)


class Numbers:
    """Fulfils Vocabulary: a word is its number."""

    start, end = 0, END

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def settled(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.fixture
def engine() -> Pictures:
    return Pictures()


@contextmanager
def opened(engine: Any, max_rows: int = 4) -> Iterator[DecodeScheduler]:
    room = DecodeScheduler(engine, Numbers(), max_rows)
    try:
        yield room
    finally:
        room.close()


def pictures(count: int, seed: int = 1) -> list[Pixels]:
    draw = np.random.default_rng(seed)
    return list(draw.random((count, PLACES, 3), np.float32) * draw.random((count, 1, 3), np.float32))


def finished(rows: Sequence[Row]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not all(row.finished for row in rows):
        assert time.monotonic() < deadline, [row.finished for row in rows]
        time.sleep(0.002)


def counted(engine: Pictures) -> list[int]:
    """Slow the steps of an engine down; return a list with their number."""
    steps = [0]

    def count() -> None:
        steps[0] += 1
        time.sleep(0.001)

    engine.before_step = count
    return steps


def run(engine: Any, *rows: Row) -> None:
    """Answer these rows to their end."""
    with opened(engine) as room:
        room.submit(rows)
        finished(rows)


def alone(picture: Pixels, **more: Any) -> Row:
    run(Pictures(), row := Row(picture, 20, **more))
    return row


def test_rows_that_join_and_leave_between_steps_have_the_tokens_they_have_alone(engine: Pictures) -> None:
    shown, draw = pictures(12), random.Random(4)
    prompts = [PROMPT[: number % 4] for number in range(len(shown))]
    expected = [alone(picture, prefix=prompt) for picture, prompt in zip(shown, prompts, strict=True)]
    assert len({tuple(row.tokens) for row in expected}) > len(shown) / 2
    assert len({len(row.tokens) for row in expected}) > 3
    rows = [Row(picture, 20, prefix=prompt) for picture, prompt in zip(shown, prompts, strict=True)]
    with opened(engine) as room:
        for row in rows:
            room.submit([row])
            time.sleep(draw.choice([0, 0.001, 0.003]))
        finished(rows)
    for row, right in zip(rows, expected, strict=True):
        assert (row.tokens, row.score, row.finished) == (right.tokens, right.score, right.finished)


def test_a_prompt_is_forced_and_neither_counted_nor_scored() -> None:
    (picture,) = pictures(1)
    free, forced = alone(picture), alone(picture, prefix=PROMPT)
    assert forced.tokens[:3] != PROMPT
    assert forced.tokens != free.tokens  # what follows depends on it
    run(Pictures(), short := Row(picture, 2, prefix=PROMPT))  # it takes nothing off the limit
    assert (short.tokens, short.finished) == (forced.tokens[:2], "length")
    assert short.score > forced.score


def test_a_score_is_the_sum_of_all_tokens() -> None:
    class Even(Pictures):
        def step(self, *inputs: Any) -> Likeliest:
            tokens, scores, added = super().step(*inputs)
            return Likeliest(tokens, np.full_like(scores, -0.5), added)

    rows = [Row(pictures(1)[0], count) for count in (1, 2, 4)]
    run(Even(), *rows)
    assert [(len(row.tokens), row.score) for row in rows] == [(1, -0.5), (2, -1.0), (4, -2.0)]


def test_the_network_reads_the_whole_prompt() -> None:
    class Noting(Pictures):
        def step(self, *inputs: Any) -> Likeliest:
            read.append(int(inputs[0][0]))
            return super().step(*inputs)

    read, row = list[int](), Row(pictures(1)[0], 3, prefix=PROMPT)
    run(Noting(), row)
    assert read == [Numbers.start, *PROMPT, *row.tokens[:-1]]


def test_a_memory_of_another_size_fails_its_own_row(engine: Pictures) -> None:
    class Cropped(Pictures):
        def encode(self, sources: Sequence[Pixels]) -> Sequence[Floats]:
            return [
                memory if source.any() else memory[:, :, :, 1:]
                for source, memory in zip(sources, super().encode(sources), strict=True)
            ]

    good, bad = Row(pictures(1)[0], 20), Row(np.zeros((PLACES, 3), np.float32), 20)
    run(Cropped(), good, bad)
    assert (good.finished, bad.finished) == ("stop", "failed")
    words = "the encoder returned a memory of 48 positions; memories of this system must have 49"
    assert str(bad.error) == words


def test_a_long_encode_does_not_delay_other_rows(engine: Pictures) -> None:
    slow, fast, searched = pictures(3)
    go_on, encoding = threading.Event(), threading.Event()

    def wait(sources: Sequence[Pixels]) -> None:
        if any(source is slow for source in sources):
            encoding.set()
            assert go_on.wait(WITHIN_S)

    engine.before_encoding = wait
    first, second = Row(fast, 20), Row(slow, 20)
    third = Row(searched, 20, beams=2)
    engine.before_step = lambda: encoding.wait(WITHIN_S) if first.tokens else None  # not before its second
    with opened(engine) as room:
        room.submit([first, third])
        while not first.tokens:
            time.sleep(0.001)
        room.submit([second])
        finished([first, third])
        assert second.finished is None
        go_on.set()
        finished([second])
    assert first.tokens == alone(fast).tokens
    assert second.tokens == alone(slow).tokens


def test_a_failed_encode_fails_only_its_own_rows(engine: Pictures) -> None:
    shown = pictures(4)

    def refuse(sources: Sequence[Pixels]) -> None:
        if any(source is shown[2] for source in sources):
            raise ValueError("this is not a picture")

    engine.before_encoding = refuse
    rows = [Row(picture, 20) for picture in shown]
    run(engine, *rows)
    assert [row.finished == "failed" for row in rows] == [False, False, True, False]
    assert str(rows[2].error) == "this is not a picture"
    assert rows[3].tokens == alone(shown[3]).tokens


@pytest.mark.parametrize("beams", [1, 2])
def test_a_row_whose_client_left_or_whose_time_ran_out_is_not_encoded(engine: Pictures, beams: int) -> None:
    gone, late = pictures(2)
    rows = [
        Row(gone, 20, beams=beams, is_cancelled=lambda: True),
        Row(late, 20, beams=beams, deadline=time.monotonic() - 1),
    ]
    run(engine, *rows)
    assert [row.finished for row in rows] == ["cancelled", "deadline"]
    assert not engine.encoded


@pytest.mark.parametrize("beams", [1, 2])
def test_a_client_with_one_row_does_not_wait_for_the_hundred_of_another(engine: Pictures, beams: int) -> None:
    many, own = pictures(2)
    greedy = [Row(many, 100, beams=beams, client="me") for _ in range(100)]
    honest = Row(own, 20, beams=beams, client="you")
    steps, at = counted(engine), list[int]()
    with opened(engine) as room:
        room.submit(greedy)
        eventually(lambda: steps[0] > 20)
        came = steps[0]
        honest.on_tokens = lambda row: at.append(steps[0] - came)
        room.submit([honest])
        finished([honest])
        assert sum(row.finished is not None for row in greedy) < 50
        for row in greedy:
            row.is_cancelled = lambda: True
        finished(greedy)
    assert at[-1] <= 3 * (len(honest.tokens) + 2)
    assert honest.tokens == alone(own, beams=beams).tokens


@pytest.mark.parametrize(("theirs", "own"), [(1, 4), (4, 1)], ids=["a search", "a greedy row"])
def test_a_row_gets_its_places_beside_the_backlog_of_others(engine: Pictures, theirs: int, own: int) -> None:
    """A search keeps the free places until there are enough; a greedy row joins beside searches."""
    many, mine = pictures(2)
    engine.is_brief = lambda source: source is mine  # type: ignore[method-assign]
    backlog = [Row(many, 8, beams=theirs, client=f"client {number % 5}") for number in range(500)]
    row, steps = Row(mine, 20, beams=own, client="you"), counted(engine)
    with opened(engine, max_rows=8) as room:
        room.submit(backlog)
        eventually(lambda: steps[0] > 20)
        before = steps[0]
        room.submit([row])
        finished([row])
        assert steps[0] - before < 100
        for other in backlog:
            other.is_cancelled = lambda: True
        finished(backlog)
    assert row.tokens == alone(mine, beams=own).tokens


def test_a_client_with_many_waiting_rows_may_not_add_more(engine: Pictures) -> None:
    (picture,) = pictures(1)
    go_on = threading.Event()
    engine.before_step = lambda: go_on.wait(WITHIN_S)
    with opened(engine) as room:
        waiting = [Row(picture, 2, beams=1 + number % 2, client="me") for number in range(600)]
        room.check_queue_of("me")
        room.submit(waiting)
        with pytest.raises(TooManyRows, match=r"\d\d\d sentences of this client wait, at most \d+ may"):
            room.check_queue_of("me")
        room.check_queue_of("you")
        go_on.set()
        finished(waiting)
        room.check_queue_of("me")


def test_closing_a_room_answers_all_waiting_rows(engine: Pictures) -> None:
    go_on = threading.Event()
    engine.before_step = lambda: go_on.wait(0.5)
    rows = [Row(picture, 20, beams=1 + number % 2) for number, picture in enumerate(pictures(12))]
    with opened(engine, max_rows=2) as room:
        room.submit(rows)
    assert {row.finished for row in rows} <= {"failed", "stop"}
    assert {str(row.error) for row in rows if row.error} == {"the model is being unloaded"}
    assert all(row.finished for row in rows)


def test_a_source_that_takes_long_to_prepare_does_not_delay_other_rows(engine: Pictures) -> None:
    shown, go_on = pictures(4), threading.Event()

    def made(row: Row) -> Pixels:
        go_on.wait(WITHIN_S)
        return shown[row.source]

    def broken(row: Row) -> Pixels:
        raise ValueError("not a picture")

    slow = Row(0, 20, prepare=made), Row(1, 20, beams=2, prepare=made)
    fails, others = Row(None, 20, prepare=broken), [Row(picture, 20) for picture in shown[2:]]
    with opened(engine) as room:
        room.submit([*slow, fails, *others])
        finished([fails, *others])
        assert not any(row.finished for row in slow)
        go_on.set()
        finished(slow)
    assert str(fails.error) == "not a picture"
    assert [row.tokens for row in slow] == [alone(shown[0]).tokens, alone(shown[1], beams=2).tokens]


def test_rows_beyond_the_preparation_threads_are_refused(engine: Pictures) -> None:
    go_on = threading.Event()
    rows = [Row(None, 20, prepare=lambda row: go_on.wait(WITHIN_S)) for _ in range(32)]
    with opened(engine) as room:
        room.submit(rows)
        with pytest.raises(TooManyRows, match="32 inputs are being prepared, at most 32 are allowed"):
            room.submit([Row(None, 20, prepare=lambda row: None)])
    assert {str(row.error) for row in rows} == {"the model is being unloaded"}
    go_on.set()


def test_a_prompt_that_is_part_of_the_answer_comes_with_its_first_piece(engine: Pictures) -> None:
    (picture,) = pictures(1)
    network: Any = SimpleNamespace(vocabulary=Numbers())
    answers = [GrowingAnswer([Row(picture, 20, prefix=PROMPT), " and that is all"], network) for _ in "ab"]
    streamed, at_once = answers
    pieces = list[str]()
    streamed.rows[0].on_tokens = lambda _row: pieces.append(streamed.new_piece().text)
    run(engine, *streamed.rows, *at_once.rows)
    whole = at_once.whole()
    assert pieces[0].startswith("2 3 4")
    assert len(pieces) > 3
    assert "".join(pieces) == whole.text
    assert whole.tokens == len(whole.text.removesuffix(" and that is all").split()) - len(PROMPT)


def test_queues_of_clients_are_served_in_turn_and_in_their_order() -> None:
    queues = ClientQueues()
    for client in "aabbc":
        queues.add(Row(None, 1, client=client, prefix=[len(queues)]))
    assert (len(queues), queues.length_of("a"), queues.length_of("x")) == (5, 2, 0)
    served = [queues.next() for _ in range(5)]
    assert "".join(row.client for row in served) == "abcab"
    assert [row.prefix for row in served if row.client == "b"] == [[2], [3]]
    assert (len(queues), list(queues.clients)) == (0, [])
