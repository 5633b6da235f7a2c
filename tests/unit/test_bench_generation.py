"""Engines and ways to turn a loop, compared: what is kept of a run, what its figures say, who agrees."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from generation import captions, captions_page, engines, page
from generation.engines import EngineResult, EngineRun
from generation.page import SentenceComparison
from generation.sentences import AGREES
from generation.served import (
    BEAMS,
    BLS,
    FIRST_PIECE_MS,
    IN_PROCESS,
    JOINING,
    LOOP,
    MEMORY_MIB,
    NOT_JOINING,
    STREAMED,
)
from generation.web_app import WEB
from generation.whole_test import WholeTest
from generation.without_triton import EAGER, ENCODER_MS, FASTAPI, PYTHON, READING_MS, STEP_MS
from gourmet.systems.translator.network import build
from gourmet.systems.translator.tokenizer import Tokenizer, learn
from gourmet.systems.translator.train import Config, shape_of
from gourmet.tasks.generation.checkpoints import CONFIG
from gourmet.training.files import save_tensors
from harness.load import BenchLoad, BenchWindow


def window(
    arm: str, level: int, turn: int, rate: int, took_ms: float = 10.0, **figures: float
) -> BenchWindow:
    load = BenchLoad(arm, "sentences", level)
    return BenchWindow(load, 1.0, (took_ms,) * rate, 0.0, figures=figures, turn=turn)


def some_windows() -> list[BenchWindow]:
    """Two turns of everybody; in the second all are half as fast."""
    rates = {
        (LOOP, 1): 10,
        (LOOP, 8): 12,
        (BLS, 8): 60,
        (IN_PROCESS, 1): 60,
        (IN_PROCESS, 8): 130,
        (BEAMS, 8): 52,
        (f"{PYTHON}, threads: 1", 8): 100,
        (f"{PYTHON}, threads: 2", 8): 150,
        (EAGER, 8): 90,
        (f"{FASTAPI}, float32, 1 × 2", 8): 100,
        (f"{FASTAPI}, int8, 1 × 2", 8): 200,
        (IN_PROCESS, 16): 140,
        (f"{FASTAPI}, int8, 1 × 2", 16): 100,
    }
    found = []
    for turn in range(2):
        found += [window(arm, level, turn, rate // (turn + 1)) for (arm, level), rate in rates.items()]
        found.append(window(STREAMED, 1, turn, 50, **{FIRST_PIECE_MS: 4.0}))
        found.append(window(WEB, 1, turn, 50, **{FIRST_PIECE_MS: 9.0}))
        parts = {ENCODER_MS: 2.0, STEP_MS: 1.0, AGREES: 0.995}
        found.append(window(f"{PYTHON}, threads: 1", 1, turn, 70, **parts))
    return found


def comparison(found: list[BenchWindow]) -> SentenceComparison:
    return SentenceComparison(found, sentences=20, pieces=7.5, turns=2, window_s=4.0)


def test_ratios_are_taken_turn_by_turn_against_the_best_of_each_kind() -> None:
    stated = {goal.what: goal for goal in page.goals(comparison(some_windows()))}
    assert stated["loop in process ÷ loop in the client, c=1"].per_turn == (6.0, 6.0)
    assert stated["loop in process ÷ loop in the client, c=1"].met is True
    assert stated["loop in process ÷ loop in BLS, c=8"].met is True
    assert stated["four beams ÷ greedy, c=8"].per_turn == (0.4, 0.4)
    assert stated["loop in process ÷ in Python, no server, best threads, c=8"].per_turn[0] == pytest.approx(
        130 / 150
    )
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, float32, best layout, c=8"].met is True
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, int8, best layout, c=8"].met is False
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, int8, best layout, c=16"].met is True
    assert stated["first piece, less the encoder, in steps of a decoder"].per_turn == (2.0, 2.0)
    assert stated["the same by the web app's API"].per_turn == (7.0, 7.0)
    (beside,) = page.goals(
        comparison([window(JOINING, 8, 0, 50, 25.0), window(NOT_JOINING, 8, 0, 50, 100.0)])
    )
    assert (beside.per_turn, beside.met) == ((0.25,), True)  # by a percentile


def test_memory_and_the_whole_test_part_stand_beside_the_loads() -> None:
    found = [window(IN_PROCESS, 8, turn, 130, **{MEMORY_MIB: mib}) for turn, mib in enumerate((90.0, 92.0))]
    part = WholeTest(texts=200, same=199, bleu=33.5, chrf=48.0)
    measured = replace(comparison(found), beside=part.goals())
    assert "- loop in process, 8 at a time: its processes have 91 MiB\n" in page.as_markdown(measured)
    assert [(goal.per_turn, goal.met) for goal in page.goals(measured)] == [
        ((99.5,), False),
        ((33.5,), True),
        ((48.0,), False),
    ]


def test_a_disturbed_arm_is_marked_and_what_is_wanted_of_it_not_judged() -> None:
    found = [replace(each, foreign_cores=0.5) if each.load.arm == EAGER else each for each in some_windows()]
    text = page.as_markdown(comparison(found))
    assert f"| {EAGER} * | 8 |" in text
    assert text.count("not judged: disturbed") == 1
    assert "not judged" not in page.as_markdown(comparison(some_windows()))


def test_the_page_keeps_what_people_wrote_and_gets_a_picture(tmp_path: Path) -> None:
    path = tmp_path / page.PART.page
    begin = f"<!-- from here on written by `{page.PART.command}` -->"
    path.write_text(f"# Generation\n\nbefore\n{begin}\nold\n<!-- {page.PART.end} -->\nafter\n")
    page.write(comparison(some_windows()), tmp_path)
    text = path.read_text()
    assert ("before" in text, "after" in text, "old" in text) == (True, True, False)
    assert "| loop in process | 8 | 97.5 (65.0–130.0) |" in text
    assert (tmp_path / page.PICTURE).read_text().startswith("<svg")


def test_of_captions_the_first_word_and_who_is_beside_them_are_judged() -> None:
    behind = f"{captions.FASTAPI}, threads: 1"
    found = [
        window(IN_PROCESS, 8, 0, 40),
        window(behind, 8, 0, 10),
        window(f"{PYTHON}, threads: 1", 8, 0, 50),
        window(STREAMED, 1, 0, 20, **{FIRST_PIECE_MS: 40.0}),
        window(f"{PYTHON}, threads: 1", 1, 0, 30, **{READING_MS: 1.0, ENCODER_MS: 25.0, STEP_MS: 0.5}),
        window(captions.BESIDE_CAPTIONS, 1, 0, 50, 30.0),
        window(captions.BESIDE_TRANSLATIONS, 1, 0, 50, 25.0),
    ]
    goals = captions_page.goals(replace(comparison(found), of="captions"))
    assert [(goal.per_turn, goal.met) for goal in goals] == [
        ((4.0,), True),
        ((0.8,), False),
        ((28.0,), False),
        ((1.2,), True),
    ]


# As many as few words have.
PIECES = 40
WORDS = "чай дом вода книга утро снег друг яблоко щука цирк жук эхо фонарь подъезд"


def result(engine: str, form: str, per_s: float, agrees: float) -> EngineResult:
    return EngineResult(engine, form, 1, 12.0, per_s / 2, per_s, agrees, 1.0)


def test_the_fastest_engine_is_the_fastest_that_agrees() -> None:
    found = [
        result("A", "int8", 300.0, 0.89),
        result("B", "int8", 200.0, 0.9),
        result("C", "fp32", 250.0, 0.999),
    ]
    run = EngineRun(found, 500, 8.0, "best.safetensors, epoch 3")
    assert run.best is found[1]
    assert "B, int8" in run.verdict()
    assert run.rows()[0][6] == "89.0 % (too few)"
    assert "none" in EngineRun(found[:1], 500, 8.0, "").verdict()


def tiny_checkpoint(folder: Path, texts: list[str]) -> Path:
    """Weights drawn by chance, so large that answers are various, with a learned bias that ends them."""
    files = learn(texts, PIECES)
    config = Config(width=32, heads=2, encoder_layers=1, feed_forward=64)
    shape = {**shape_of(config, Tokenizer(files)), "max_position_embeddings": 256}
    network = build(shape)
    torch.manual_seed(2)
    for weights in network.parameters():
        if weights.requires_grad and weights.dim() > 1:
            torch.nn.init.normal_(weights, 0, 0.3)
    network.get_buffer("final_logits_bias")[0, 0] = 3.0
    for name, content in {**files, CONFIG: json.dumps(shape).encode()}.items():
        (folder / name).write_bytes(content)
    save_tensors(folder / "best.safetensors", network.state_dict(), {"epoch": 0})
    return folder / "best.safetensors"


@pytest.mark.slow
def test_every_engine_says_what_the_network_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32, of a network as small as can be: its form is right for each of them."""
    monkeypatch.setattr(engines, "available_cpus", lambda: 1)
    draw = random.Random(3)
    lines = [" ".join(draw.choices(WORDS.split(), k=draw.randrange(2, 7))) for _ in range(30)]
    data = tmp_path / "pairs.tsv"
    parts = [(part, at, line) for part in ("dev", "test") for at, line in enumerate(lines)]
    data.write_text("".join(f"{part}\tmade up\tnothing {at}\t{line}\n" for part, at, line in parts))
    run = engines.measure(tiny_checkpoint(tmp_path, lines), data, 20, lambda share, words="": None)
    names = ("ONNX Runtime", "CTranslate2", "transformers")
    assert {(each.engine, each.agrees) for each in run.results if each.form == "fp32"} == {
        (engine, 1.0) for engine in names
    }
    assert {each.engine for each in run.results if each.form == "int8"} == {*names[:2]}
    assert all(each.as_alone == 1.0 for each in run.results if each.engine == "ONNX Runtime")
