"""Rows of any age through one loop: each gets the words that it would get alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.beam_search import search

from gourmet.errors import GourmetError
from gourmet.export.text_graphs import Graph
from gourmet.export.text_int8 import quantized, rounded
from gourmet.generation import package
from gourmet.generation.engine import Engine, min_rows, onnx_graph
from gourmet.generation.loop import Loop, Row
from gourmet.generation.scheduler import DecodeScheduler
from gourmet.learning.text_training import padded
from gourmet.served.manifest import sha256
from gourmet.systems.translator.export import graphs
from gourmet.systems.translator.network import build
from gourmet.systems.translator.serving import MarianEngine
from gourmet.systems.translator.train import Config, shape_of

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
    with Decoded(engine, continuous=continuous) as decoded:
        long = Row(sources[endless], 100, on_tokens=lambda row: time.sleep(0.002))
        decoded.room.submit([long])
        time.sleep(0.02)
        decoded.ask([sources[1]], max_tokens=2)
        decoded.wait()
        assert (long.finished is None) == continuous


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
