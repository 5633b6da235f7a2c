"""Engines and ways to turn a loop, compared: what is kept of a run, what its figures say, who agrees."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from generation import engine_page, engines, page
from generation.engines import EngineResult, EngineRun
from generation.page import SentenceComparison
from generation.sentences import AGREES
from generation.served import BLS, FIRST_PIECE_MS, IN_PROCESS, JOINING, LOOP, NOT_JOINING, STREAMED
from generation.without_triton import EAGER, ENCODER_MS, FASTAPI, PYTHON, STEP_MS
from gourmet.systems.translator.network import CONFIG, build
from gourmet.systems.translator.tokenizer import learn
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
        (f"{PYTHON}, threads: 1", 8): 100,
        (f"{PYTHON}, threads: 2", 8): 150,
        (EAGER, 8): 90,
        (f"{FASTAPI}, float32, 1 × 2", 8): 100,
        (f"{FASTAPI}, int8, 1 × 2", 8): 200,
    }
    found = []
    for turn in range(2):
        found += [window(arm, level, turn, rate // (turn + 1)) for (arm, level), rate in rates.items()]
        found.append(window(STREAMED, 1, turn, 50, **{FIRST_PIECE_MS: 4.0}))
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
    assert stated["loop in process ÷ in Python, no server, best threads, c=8"].per_turn[0] == pytest.approx(
        130 / 150
    )
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, float32, best layout, c=8"].met is True
    assert stated["loop in process ÷ CTranslate2 behind FastAPI, int8, best layout, c=8"].met is False
    assert stated["first piece, less the encoder, in steps of a decoder"].per_turn == (2.0, 2.0)


def test_what_stands_beside_long_ones_is_judged_by_its_percentile() -> None:
    (goal,) = page.goals(comparison([window(JOINING, 8, 0, 50, 40.0), window(NOT_JOINING, 8, 0, 50, 100.0)]))
    assert goal.per_turn == (0.4,)
    assert goal.met is True


def test_a_disturbed_arm_is_marked_and_what_is_wanted_of_it_not_judged() -> None:
    found = [replace(each, foreign_cores=0.5) if each.load.arm == EAGER else each for each in some_windows()]
    text = page.as_markdown(comparison(found))
    assert f"| {EAGER} * | 8 |" in text
    assert text.count("not judged: disturbed") == 1
    assert "not judged" not in page.as_markdown(comparison(some_windows()))


def test_the_page_keeps_what_people_wrote_and_gets_picture_and_data(tmp_path: Path) -> None:
    path = tmp_path / page.PART.page
    marks = [
        "<!-- from here on written by `gourmet bench generation compare` -->",
        "<!-- to here: compare -->",
    ]
    path.write_text(f"# Generation\n\nbefore\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    page.write(comparison(some_windows()), tmp_path)
    text = path.read_text()
    assert "before" in text
    assert "after" in text
    assert "old" not in text
    assert "| loop in process | 8 | 97.5 (65.0–130.0) |" in text
    assert (tmp_path / page.PICTURE).read_text().startswith("<svg")
    first, *others = json.loads((tmp_path / page.DATA).read_text())["windows"]
    assert (first["turn"], first["load"]["arm"], first["load"]["level"]) == (0, LOOP, 1)
    assert len(others) + 1 == len(some_windows())


# As many as few words have.
PIECES = 40


def result(engine: str, form: str, per_s: float, agrees: float) -> EngineResult:
    return EngineResult(engine, form, 1, 12.0, per_s / 2, per_s, agrees, 1.0)


def test_the_fastest_engine_is_the_fastest_that_agrees() -> None:
    found = [
        result("A", "int8", 300.0, 0.98),
        result("B", "int8", 200.0, 0.99),
        result("C", "fp32", 250.0, 0.999),
    ]
    run = EngineRun(found, 500, 8.0, "best.safetensors, epoch 3")
    assert run.best is found[1]
    assert "B, int8" in engine_page.verdict(run)
    assert engine_page.rows(run)[0][6] == "98.0 % (too few)"
    assert "No engine" in engine_page.verdict(EngineRun(found[:1], 500, 8.0, ""))


def tiny_checkpoint(folder: Path, texts: list[str]) -> Path:
    """Weights drawn by chance, so large that answers are various, with a learned bias that ends them."""
    files = learn(texts, PIECES)
    shape = {
        "vocab_size": PIECES,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "activation_function": "swish",
        "max_position_embeddings": 256,
        "scale_embedding": True,
        "pad_token_id": 1,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
        "decoder_start_token_id": 1,
    }
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
def test_every_engine_says_what_the_network_says(tmp_path: Path) -> None:
    """In fp32, of a network as small as can be: its form is right for each of them."""
    draw = random.Random(3)
    words = [
        "чай",
        "дом",
        "вода",
        "книга",
        "утро",
        "снег",
        "друг",
        "яблоко",
        "щука",
        "цирк",
        "жук",
        "эхо",
        "фонарь",
        "подъезд",
    ]
    lines = [" ".join(draw.choices(words, k=draw.randrange(2, 7))) for _ in range(30)]
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"test\tmade up\tnothing {at}\t{line}\n" for at, line in enumerate(lines)))
    run = engines.measure(tiny_checkpoint(tmp_path, lines), data, 20, lambda share, words="": None)
    assert {each.engine for each in run.results} == {
        "ONNX Runtime",
        "OpenVINO",
        "CTranslate2",
        "transformers",
    }
    assert {(each.engine, each.agrees) for each in run.results if each.form == "fp32"} == {
        (engine, 1.0) for engine in ("ONNX Runtime", "OpenVINO", "CTranslate2", "transformers")
    }
    assert all(each.as_alone == 1.0 for each in run.results if each.engine == "ONNX Runtime")
