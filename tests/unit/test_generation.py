"""Rows of any age through the scheduler and its loop: each gets the words that it would get alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import log_softmax
from support.beam_search import search
from support.eventually import eventually

from gourmet.errors import GourmetError
from gourmet.export.text_graphs import Graph
from gourmet.export.text_int8 import quantized, rounded
from gourmet.generation import package
from gourmet.generation.answers import GrowingAnswer
from gourmet.generation.engine import Engine, Floats, Likeliest, min_rows, onnx_graph
from gourmet.generation.loop import Loop, Row, TooManyRows
from gourmet.generation.scheduler import ClientQueues, DecodeScheduler
from gourmet.learning.text_training import padded
from gourmet.served.manifest import sha256
from gourmet.systems.translator.export import graphs
from gourmet.systems.translator.network import build
from gourmet.systems.translator.serving import MarianEngine
from gourmet.systems.translator.train import Config, shape_of

Pixels = npt.NDArray[np.float32]
PROMPT = [2, 3, 4]
PLACES, CAPTION_WORDS, CAPTION_END = 49, 31, 1
KEPT = (1, 2, 1, PLACES, CAPTION_WORDS)  # layers, keys and values, heads
WITHIN_S = 30


class Pictures(Engine):
    """Every place of a picture votes for words, each word for the next, and no word is liked twice.

    So an answer depends on the picture, the prompt and all words before. A test may get between.
    """

    positions = PLACES

    def __init__(self) -> None:
        draw = np.random.default_rng(3)
        self._seen, self._next = (
            draw.normal(0, 3, (3, CAPTION_WORDS)),
            draw.normal(0, 1.5, (CAPTION_WORDS, CAPTION_WORDS)),
        )
        self._ends = np.zeros((CAPTION_WORDS + 1, CAPTION_WORDS))
        self._ends[:, CAPTION_END], self._ends[:, 0] = (
            np.linspace(-4, 5, CAPTION_WORDS + 1),
            -1e4,
        )  # 0 is the start
        self.encoded: list[int] = []
        self.before_encoding: Callable[[Sequence[Pixels]], object] = lambda sources: None
        self.before_step: Callable[[], object] = lambda: None

    def encode(self, sources: Sequence[Pixels]) -> Sequence[Floats]:
        self.before_encoding(sources)
        self.encoded.append(len(sources))
        return [np.broadcast_to((source @ self._seen).astype(np.float32), KEPT) for source in sources]

    def step(self, tokens: Any, lengths: Any, cache: Floats, memory: Floats, mask: Any) -> Likeliest:
        self.before_step()
        one_hot, places = np.eye(CAPTION_WORDS, dtype=np.float32)[tokens], np.arange(cache.shape[4])
        picture = np.einsum("nlkhpv,np->nv", memory, mask) / mask.sum(axis=1, keepdims=True)
        before = np.einsum("nlkhpv,np->nv", cache, places < lengths[:, None]) + one_hot
        wishes = picture + self._next[tokens] + self._ends[lengths] - 3 * before
        # Rounded, so that no row has another last digit among others than alone.
        scores = log_softmax(wishes, axis=1).round(4).astype(np.float32)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :8]
        added = np.broadcast_to(one_hot[:, None, None, None, None], (len(tokens), 1, 2, 1, 1, CAPTION_WORDS))
        return Likeliest(best.astype(np.int32), np.take_along_axis(scores, best, 1), added)


class Numbers:
    """Fulfils Vocabulary: a word is its number."""

    start, end = 0, CAPTION_END

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def settled(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.fixture
def pictures_engine() -> Pictures:
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


def counted(pictures_engine: Pictures, room: DecodeScheduler) -> tuple[list[int], threading.Event]:
    """Return a list with the number of steps, and an event for which the 21st waits.

    Each step waits for the thread that encodes, which a busy machine may pause.
    """
    steps, go_on = [0], threading.Event()

    def is_encoding() -> bool:
        with room._changed:
            return bool(room._encoding or room._may_encode())

    def count() -> None:
        steps[0] += 1
        if steps[0] > 20:
            go_on.wait(WITHIN_S)
        while is_encoding():
            time.sleep(0.001)

    pictures_engine.before_step = count
    return steps, go_on


def run(engine: Any, *rows: Row) -> None:
    """Answer these rows to their end."""
    with opened(engine) as room:
        room.submit(rows)
        finished(rows)


def answered_alone(picture: Pixels, **more: Any) -> Row:
    run(Pictures(), row := Row(picture, 20, **more))
    return row


def test_rows_that_join_and_leave_between_steps_have_the_tokens_they_have_alone(
    pictures_engine: Pictures,
) -> None:
    shown, draw = pictures(12), random.Random(4)
    prompts = [PROMPT[: number % 4] for number in range(len(shown))]
    expected = [
        answered_alone(picture, prefix=prompt) for picture, prompt in zip(shown, prompts, strict=True)
    ]
    assert len({tuple(row.tokens) for row in expected}) > len(shown) / 2
    assert len({len(row.tokens) for row in expected}) > 3
    rows = [Row(picture, 20, prefix=prompt) for picture, prompt in zip(shown, prompts, strict=True)]
    with opened(pictures_engine) as room:
        for row in rows:
            room.submit([row])
            time.sleep(draw.choice([0, 0.001, 0.003]))
        finished(rows)
    for row, right in zip(rows, expected, strict=True):
        assert (row.tokens, row.score, row.finished) == (right.tokens, right.score, right.finished)


def test_a_prompt_is_forced_and_neither_counted_nor_scored() -> None:
    (picture,) = pictures(1)
    free, forced = answered_alone(picture), answered_alone(picture, prefix=PROMPT)
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


def test_a_memory_of_another_size_fails_its_own_row(pictures_engine: Pictures) -> None:
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


def test_a_long_encode_does_not_delay_other_rows(pictures_engine: Pictures) -> None:
    slow, fast, searched = pictures(3)
    go_on, encoding = threading.Event(), threading.Event()

    def wait(sources: Sequence[Pixels]) -> None:
        if any(source is slow for source in sources):
            encoding.set()
            assert go_on.wait(WITHIN_S)

    pictures_engine.before_encoding = wait
    first, second = Row(fast, 20), Row(slow, 20)
    third = Row(searched, 20, beams=2)
    pictures_engine.before_step = lambda: (
        encoding.wait(WITHIN_S) if first.tokens else None
    )  # not before its second
    with opened(pictures_engine) as room:
        room.submit([first, third])
        while not first.tokens:
            time.sleep(0.001)
        room.submit([second])
        finished([first, third])
        assert second.finished is None
        go_on.set()
        finished([second])
    assert first.tokens == answered_alone(fast).tokens
    assert second.tokens == answered_alone(slow).tokens


def test_a_failed_encode_fails_only_its_own_rows(pictures_engine: Pictures) -> None:
    shown = pictures(4)

    def refuse(sources: Sequence[Pixels]) -> None:
        if any(source is shown[2] for source in sources):
            raise ValueError("this is not a picture")

    pictures_engine.before_encoding = refuse
    rows = [Row(picture, 20) for picture in shown]
    run(pictures_engine, *rows)
    assert [row.finished == "failed" for row in rows] == [False, False, True, False]
    assert str(rows[2].error) == "this is not a picture"
    assert rows[3].tokens == answered_alone(shown[3]).tokens


@pytest.mark.parametrize("beams", [1, 2])
def test_a_row_whose_client_left_or_whose_time_ran_out_is_not_encoded(
    pictures_engine: Pictures, beams: int
) -> None:
    gone, late = pictures(2)
    rows = [
        Row(gone, 20, beams=beams, is_cancelled=lambda: True),
        Row(late, 20, beams=beams, deadline=time.monotonic() - 1),
    ]
    run(pictures_engine, *rows)
    assert [row.finished for row in rows] == ["cancelled", "deadline"]
    assert not pictures_engine.encoded


@pytest.mark.parametrize("beams", [1, 2])
def test_a_client_with_one_row_does_not_wait_for_the_hundred_of_another(
    pictures_engine: Pictures, beams: int
) -> None:
    many, own = pictures(2)
    greedy = [Row(many, 100, beams=beams, client="me") for _ in range(100)]
    honest = Row(own, 20, beams=beams, client="you")
    at_end = list[int]()

    def note(row: Row) -> None:
        if row.finished:
            at_end.extend((steps[0], sum(other.finished is not None for other in greedy)))

    honest.on_tokens = note
    with opened(pictures_engine) as room:
        steps, go_on = counted(pictures_engine, room)
        room.submit(greedy)
        eventually(lambda: steps[0] == 21)
        room.submit([honest])
        go_on.set()
        eventually(lambda: len(at_end) == 2)
        for row in greedy:
            row.is_cancelled = lambda: True
        finished(greedy)
    number, others = at_end
    assert number - 21 <= 3 * (len(honest.tokens) + 2)
    assert others < 50
    assert honest.tokens == answered_alone(own, beams=beams).tokens


@pytest.mark.parametrize(("theirs", "own"), [(1, 4), (4, 1)], ids=["a search", "a greedy row"])
def test_a_row_gets_its_places_beside_the_backlog_of_others(
    pictures_engine: Pictures, theirs: int, own: int
) -> None:
    """A search keeps the free places until there are enough; a greedy row joins beside searches."""
    many, mine = pictures(2)
    pictures_engine.is_brief = lambda source: source is mine  # type: ignore[method-assign]
    backlog = [Row(many, 8, beams=theirs, client=f"client {number % 5}") for number in range(500)]
    row, number = Row(mine, 20, beams=own, client="you"), list[int]()
    row.on_tokens = lambda row: number.extend(steps if row.finished else ())
    with opened(pictures_engine, max_rows=8) as room:
        steps, go_on = counted(pictures_engine, room)
        room.submit(backlog)
        eventually(lambda: steps[0] == 21)
        room.submit([row])
        go_on.set()
        eventually(lambda: number)
        assert number[0] - 21 < 100
        for other in backlog:
            other.is_cancelled = lambda: True
        finished(backlog)
    assert row.tokens == answered_alone(mine, beams=own).tokens


def test_a_client_with_many_waiting_rows_may_not_add_more(pictures_engine: Pictures) -> None:
    (picture,) = pictures(1)
    go_on = threading.Event()
    pictures_engine.before_step = lambda: go_on.wait(WITHIN_S)
    with opened(pictures_engine) as room:
        waiting = list[Row]()

        def add_until_refused() -> None:
            while len(waiting) < 2000:
                room.check_queue_of("me")
                waiting.append(Row(picture, 2, beams=1 + len(waiting) % 2, client="me"))
                room.submit(waiting[-1:])

        with pytest.raises(TooManyRows, match=r"(\d\d\d) sentences of this client wait, at most \1 may"):
            add_until_refused()
        room.check_queue_of("you")
        go_on.set()
        finished(waiting)
        room.check_queue_of("me")


def test_closing_a_room_answers_all_waiting_rows(pictures_engine: Pictures) -> None:
    go_on = threading.Event()
    pictures_engine.before_step = lambda: go_on.wait(0.5)
    rows = [Row(picture, 20, beams=1 + number % 2) for number, picture in enumerate(pictures(12))]
    with opened(pictures_engine, max_rows=2) as room:
        room.submit(rows)
    assert {row.finished for row in rows} <= {"failed", "stop"}
    assert {str(row.error) for row in rows if row.error} == {"the model is being unloaded"}
    assert all(row.finished for row in rows)


def test_a_source_that_takes_long_to_prepare_does_not_delay_other_rows(pictures_engine: Pictures) -> None:
    shown, go_on = pictures(4), threading.Event()

    def made(row: Row) -> Pixels:
        go_on.wait(WITHIN_S)
        return shown[row.source]

    def broken(row: Row) -> Pixels:
        raise ValueError("not a picture")

    slow = Row(0, 20, prepare=made), Row(1, 20, beams=2, prepare=made)
    fails, others = Row(None, 20, prepare=broken), [Row(picture, 20) for picture in shown[2:]]
    with opened(pictures_engine) as room:
        room.submit([*slow, fails, *others])
        finished([fails, *others])
        assert not any(row.finished for row in slow)
        go_on.set()
        finished(slow)
    assert str(fails.error) == "not a picture"
    assert [row.tokens for row in slow] == [
        answered_alone(shown[0]).tokens,
        answered_alone(shown[1], beams=2).tokens,
    ]


def test_rows_beyond_the_preparation_threads_are_refused(pictures_engine: Pictures) -> None:
    go_on = threading.Event()
    rows = [Row(None, 20, prepare=lambda row: go_on.wait(WITHIN_S)) for _ in range(32)]
    with opened(pictures_engine) as room:
        room.submit(rows)
        with pytest.raises(TooManyRows, match="32 inputs are being prepared, at most 32 are allowed"):
            room.submit([Row(None, 20, prepare=lambda row: None)])
    assert {str(row.error) for row in rows} == {"the model is being unloaded"}
    go_on.set()


def test_a_prompt_that_is_part_of_the_answer_comes_with_its_first_piece(pictures_engine: Pictures) -> None:
    (picture,) = pictures(1)
    network: Any = SimpleNamespace(vocabulary=Numbers())
    answers = [GrowingAnswer([Row(picture, 20, prefix=PROMPT), " and that is all"], network) for _ in "ab"]
    streamed, at_once = answers
    pieces = list[str]()
    streamed.rows[0].on_tokens = lambda _row: pieces.append(streamed.new_piece().text)
    run(pictures_engine, *streamed.rows, *at_once.rows)
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


# The engine of the translator, and packages
WORDS, PAD, END = 300, 1, 0
MAX_TOKENS = 30
VOCABULARY: Any = SimpleNamespace(start=PAD, size=WORDS, pad=PAD, end=END)
Answers = list[tuple[tuple[int, ...], float]]  # the words of each, and their score


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    """Small, of weights as training keeps them, so large that answers are long and easily led astray."""
    config = Config(width=64, heads=4, encoder_layers=2, feed_forward=64)
    model = build({**shape_of(config, VOCABULARY), "max_position_embeddings": 128})
    torch.manual_seed(2)
    for weights in model.parameters():
        if weights.requires_grad and weights.dim() > 1:
            torch.nn.init.normal_(weights, 0, 0.4)
    with torch.no_grad():
        model.final_logits_bias[0, END] = 4.5
    return rounded(model).eval()


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    draw = random.Random(7)
    return [[*(draw.randrange(3, WORDS) for _ in range(draw.randrange(1, 25))), END] for _ in range(24)]


class Decoded:
    """Rows through a loop, and a way to wait for the end of all."""

    def __init__(self, engine: Engine, rows: int = 8, *, continuous: bool = True) -> None:
        self.room = DecodeScheduler(engine, VOCABULARY, rows, continuous=continuous)
        self._ended = threading.Semaphore(0)
        self.rows: list[Row] = []

    def ask(self, sources: Sequence[Sequence[int]], max_tokens: int = MAX_TOKENS) -> list[Row]:
        rows = [Row(source, max_tokens, on_tokens=self._on_tokens) for source in sources]
        self.rows += rows
        self.room.submit(rows)
        return rows

    def wait(self) -> list[Row]:
        for _ in self.rows:
            assert self._ended.acquire(timeout=60)
        return self.rows

    def _on_tokens(self, row: Row) -> None:
        if row.finished:
            self._ended.release()

    def __enter__(self) -> Decoded:
        return self

    def __exit__(self, *_: object) -> None:
        self.room.close()


@pytest.fixture(scope="module")
def form(network: torch.nn.Module, sources: list[list[int]]) -> torch.nn.Module:
    """The network in eight bits, as it is served."""
    model: torch.nn.Module = quantized(network, lambda network: generated(network, sources))
    return model


@pytest.fixture(scope="module")
def engine(form: torch.nn.Module) -> Engine:
    return MarianEngine.of_graphs(*(graph.file() for graph in graphs(form).values()), 1, PAD)


@pytest.fixture(scope="module")
def alone(engine: Engine, sources: list[list[int]]) -> Answers:
    """Return the answer to each source, computed alone."""
    rows = [Row(source, MAX_TOKENS) for source in sources]
    for row in rows:
        Loop(engine, VOCABULARY, 8).complete([row])
    return [(tuple(row.tokens), row.score) for row in rows]


def generated(network: torch.nn.Module, sources: list[list[int]]) -> list[list[int]]:
    """Return the tokens of the loop of transformers."""
    rows = padded(sources, PAD)
    with torch.inference_mode():
        tokens: torch.Tensor = network.generate(  # type: ignore[operator]
            input_ids=rows,
            attention_mask=(rows != PAD).long(),
            num_beams=1,
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
            bad_words_ids=[[PAD]],
        )
    return tokens.tolist()  # type: ignore[no-any-return]


def test_greedy_tokens_are_those_of_transformers(
    form: torch.nn.Module, sources: list[list[int]], alone: Answers
) -> None:
    wanted = generated(form, sources)
    ends = (right[1:].index(END) + 1 if END in right[1:] else len(right) for right in wanted)
    right = [expected[1:end] for expected, end in zip(wanted, ends, strict=True)]
    same = sum(list(tokens) == expected for (tokens, _), expected in zip(alone, right, strict=True))
    # A last digit may decide how eight bits round, and from then on all is another.
    assert same >= 0.9 * len(right)
    assert len({tokens for tokens, _ in alone}) > 10, "too much alike to tell a mix-up"
    assert len({len(tokens) for tokens, _ in alone}) > 5


@pytest.mark.parametrize("max_rows", [5, 6, 11, 40])
def test_tokens_do_not_depend_on_the_other_rows(
    max_rows: int, engine: Engine, alone: Answers, sources: list[list[int]]
) -> None:
    """Bit for bit, however the rows are divided, and whenever they come."""
    chance = random.Random(max_rows)
    order = chance.sample(range(len(sources)), len(sources))
    cuts = sorted(chance.sample(range(1, len(sources)), min(max_rows, 12)))
    with Decoded(engine, max_rows) as decoded:
        for first, last in zip([0, *cuts], [*cuts, len(sources)], strict=True):
            decoded.ask([sources[index] for index in order[first:last]])
            time.sleep(chance.choice([0, 0, 0.001, 0.004]))
        result = decoded.wait()
    for index, row in zip(order, result, strict=True):
        assert (tuple(row.tokens), row.score) == alone[index]


@pytest.mark.parametrize("continuous", [True, False])
def test_a_later_row_joins_between_two_steps_unless_turned_off(
    engine: Engine, sources: list[list[int]], alone: Answers, continuous: bool
) -> None:
    endless = next(index for index, (tokens, _) in enumerate(alone) if len(tokens) == MAX_TOKENS)
    began, asked = threading.Event(), threading.Event()
    of_the_long = list[object]()

    def hold(_: Row) -> None:
        began.set()
        asked.wait(WITHIN_S)

    with Decoded(engine, continuous=continuous) as decoded:
        room, long = decoded.room, Row(sources[endless], 100, on_tokens=hold)
        room.submit([long])
        assert began.wait(WITHIN_S)
        room.submit([Row(sources[1], 2, on_tokens=lambda _: of_the_long.append(long.finished))])
        eventually(lambda: room._ready or room._brief)
        asked.set()
        eventually(lambda: of_the_long)
    assert (of_the_long[0] is None) == continuous


class Broken:
    def __init__(self, engine: Engine) -> None:
        for name in ("positions", "encode", "is_brief", "min_rows", "layers_apart"):
            setattr(self, name, getattr(engine, name))

    def step(self, *_: object) -> None:
        raise RuntimeError("no such kernel")


def test_a_failed_step_fails_only_the_rows_at_work(engine: Engine, sources: list[list[int]]) -> None:
    broken = Broken(engine)
    with Decoded(broken) as decoded:  # type: ignore[arg-type]
        (row,) = decoded.ask(sources[:1])
        decoded.wait()
        assert (row.finished, str(row.error)) == ("failed", "no such kernel")
        broken.step = engine.step  # type: ignore[method-assign,assignment]
        decoded.rows = []
        (row,) = decoded.ask(sources[:1])
        decoded.wait()
        assert row.finished in ("stop", "length")


def test_a_beam_search_does_not_depend_on_the_other_rows(
    engine: Engine, alone: Answers, sources: list[list[int]]
) -> None:
    """Bit for bit, beside other searches and greedy rows; these have what they have alone."""
    right, mixed = (
        [Row(source, MAX_TOKENS, beams=2 + n % 3) for n, source in enumerate(sources[:9])] for _ in "ab"
    )
    for row in right:
        search(engine, row, VOCABULARY)
    assert len({tuple(row.tokens) for row in right}) > 6
    beside = [Row(source, MAX_TOKENS) for source in sources]
    among = [*mixed, *beside]
    random.Random(5).shuffle(among)
    Loop(engine, VOCABULARY, 11).complete(among)
    for result, expected in zip(mixed, right, strict=True):
        for name in ("tokens", "others", "finished", "score"):
            assert getattr(result, name) == getattr(expected, name)
    assert [(tuple(row.tokens), row.score) for row in beside] == alone


def test_more_beams_than_places_are_refused(engine: Engine, sources: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="4 beams need as many rows of the loop, which has 3: ask for fewer"):
        Loop(engine, VOCABULARY, 3).complete([Row(sources[0], 5, beams=4)])


@pytest.mark.parametrize(("taken", "made"), [(64, 40), (300, 7)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_of_eight_bits_is_computed_here_as_onnxruntime_does_and_has_the_same_bits_in_any_company(
    taken: int, made: int, has_bias: bool
) -> None:
    torch.manual_seed(3)
    rows = torch.randn(17, 1, taken)
    rows[3], rows[4], rows[5] = 0.0, 1e-20, 1e4  # the last is far beyond what was measured
    plain = torch.nn.Sequential(torch.nn.Linear(taken, made, bias=has_bias))
    part = quantized(plain, lambda network: network(rows[:3]))
    graph = Graph(part, {"rows": rows}, ("found",), {"rows": {0: "rows"}, "found": {0: "rows"}}).file()
    assert min_rows(graph) == 1
    run = onnx_graph(graph, 1)
    (together,) = run(["found"], {"rows": rows.numpy()})
    with torch.inference_mode():
        np.testing.assert_allclose(together, part(rows).numpy(), rtol=1e-5, atol=1e-5)
    alone = [run(["found"], {"rows": rows[index : index + 1].numpy()})[0] for index in range(len(rows))]
    assert (np.concatenate(alone) == together).all()


def test_a_package_of_another_model_is_found_by_its_hash(tmp_path: Path) -> None:
    for number, files in (("1", {"a": b"of another version"}), ("2", {"b": b"2", "a": b"1"})):
        (tmp_path / "whole" / number).mkdir(parents=True)
        package.write_package(tmp_path / "whole" / number / package.FILE, files)
    version = tmp_path / "stream" / "7"
    version.mkdir(parents=True)
    wanted = sha256(tmp_path / "whole" / "2" / package.FILE)
    package.write_reference(version / package.REFERENCE, "whole", wanted)
    assert package.open_version(version, {}) == {"a": b"1", "b": b"2"}
    # A file that is not the one it was made with is not taken, whatever its name.
    package.write_package(tmp_path / "whole" / "2" / package.FILE, {"a": b"other"})
    with pytest.raises(GourmetError, match=r"keep both models in one repository, or deploy whole"):
        package.open_version(version, {})
    (version / package.REFERENCE).write_text("{}")
    with pytest.raises(GourmetError, match="cannot be read"):
        package.open_version(version, {})


def test_graphs_that_are_models_of_their_own_lie_in_a_repository_once(tmp_path: Path) -> None:
    for model in ("whole", "vision"):
        (tmp_path / model / "1").mkdir(parents=True)
    path, files = tmp_path / "whole" / "1" / package.FILE, {"v.onnx": b"seen" * 999, "words": b"a"}
    package.write_package(path, files, elsewhere={"v.onnx": "vision"})
    assert path.stat().st_size < 999
    with pytest.raises(GourmetError, match=r"a model\.onnx that .*vision does not have: keep both"):
        package.read_package(path)
    (tmp_path / "vision" / "1" / "model.onnx").write_bytes(files["v.onnx"])
    assert package.read_package(path) == files
