"""Engines and ways to turn a loop, compared: what is kept of a run, what its figures say, who agrees."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from generation import compare_report, engine_report, engines, windows
from generation.compare import AGREES, EAGER, FASTAPI, PYTHON, Plan, Side
from generation.engines import EngineResult, EngineRun
from generation.served import BLS, IN_PROCESS, JOINING, LOOP, NOT_JOINING, STREAMED
from generation.windows import Kept, Key, SentenceWindow
from gourmet.errors import UsageError
from gourmet.measure.task import MeasureOptions
from gourmet.systems.translator.network import CONFIG, build
from gourmet.systems.translator.tokenizer import learn
from gourmet.training.files import save_tensors

PLAN = Plan(
    Path("best.safetensors"), Path("pairs.tsv"), 20, 2, MeasureOptions(window_s=4.0, windows=1), Path()
)


def window(arm: str, level: int, turn: int, per_s: float, **figures: float) -> SentenceWindow:
    return SentenceWindow(Key(turn, arm, level), per_s, 10.0, 20.0, 30.0, 100, 0.0, figures)


def some_windows() -> list[SentenceWindow]:
    """Two turns of everybody; in the second all are half as fast."""
    rates = {
        (LOOP.name, 1): 10.0,
        (LOOP.name, 8): 12.0,
        (BLS.name, 8): 60.0,
        (IN_PROCESS.name, 1): 60.0,
        (IN_PROCESS.name, 8): 130.0,
        (f"{PYTHON}, threads: 1", 8): 100.0,
        (f"{PYTHON}, threads: 2", 8): 150.0,
        (EAGER, 8): 90.0,
        (f"{FASTAPI}, float32, 1 × 2", 8): 100.0,
        (f"{FASTAPI}, int8, 1 × 2", 8): 200.0,
    }
    found = []
    for turn in range(2):
        found += [window(arm, level, turn, rate / (turn + 1)) for (arm, level), rate in rates.items()]
        found.append(window(STREAMED.name, 1, turn, 50.0, **{"first piece ms": 4.0}))
        parts = {"encoder ms": 2.0, "step ms": 1.0}
        found.append(window(f"{PYTHON}, threads: 1", 1, turn, 70.0, **parts, **{AGREES: 0.995}))
    return found


def side(found: list[SentenceWindow]) -> Side:
    return Side(PLAN, found, 20, 7.5)


def test_ratios_are_taken_turn_by_turn_against_the_best_of_each_kind() -> None:
    told = {goal.what: goal for goal in compare_report.goals(side(some_windows()))}
    assert told["loop in process ÷ loop in the client, c=1"].per_turn == (6.0, 6.0)
    assert told["loop in process ÷ loop in the client, c=1"].met is True
    assert told["loop in process ÷ loop in BLS, c=8"].met is True
    assert told["loop in process ÷ in Python, no server, best threads, c=8"].per_turn[0] == pytest.approx(
        130 / 150
    )
    assert told["loop in process ÷ CTranslate2 behind FastAPI, float32, best layout, c=8"].met is True
    assert told["loop in process ÷ CTranslate2 behind FastAPI, int8, best layout, c=8"].met is False
    assert told["first piece, less the encoder, in steps of a decoder"].per_turn == (2.0, 2.0)


def test_what_stands_beside_long_ones_is_judged_by_its_percentile() -> None:
    found = []
    for (name, _), p99 in ((JOINING, 40.0), (NOT_JOINING, 100.0)):
        found.append(SentenceWindow(Key(0, name, 8), 50.0, 10.0, 20.0, p99, 100, 0.0, {}))
    (goal,) = compare_report.goals(side(found))
    assert goal.per_turn == (0.4,)
    assert goal.met is True


def test_a_disturbed_arm_is_marked_and_what_is_wanted_of_it_not_judged() -> None:
    found = [each for each in some_windows() if each.key.arm != EAGER]
    found += [
        SentenceWindow(Key(turn, EAGER, 8), 90.0, 1.0, 1.0, 1.0, 1, foreign_cores=0.5) for turn in range(2)
    ]
    text = compare_report.as_markdown(side(found), {"cpus": "2 of 2"}, "2026-01-01")
    assert f"| {EAGER} * | 8 |" in text
    assert text.count("not judged: disturbed") == 1
    assert "not judged" not in compare_report.as_markdown(side(some_windows()), {}, "2026-01-01")


def test_the_page_keeps_what_people_wrote_and_gets_picture_and_data(tmp_path: Path) -> None:
    page = tmp_path / compare_report.PAGE
    marks = [f"<!-- from here on written by `{compare_report.COMMAND}` -->", "<!-- to here: compare -->"]
    page.write_text(f"# Generation\n\nbefore\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    compare_report.write(side(some_windows()), {"cpus": "2 of 2"}, tmp_path, "2026-01-01")
    text = page.read_text()
    assert "before" in text
    assert "after" in text
    assert "old" not in text
    assert "| loop in process | 8 | 97.5 (65.0–130.0) |" in text
    assert (tmp_path / compare_report.PICTURE).read_text().startswith("<svg")
    assert len(json.loads((tmp_path / compare_report.DATA).read_text())["windows"]) == len(some_windows())


def test_a_run_goes_on_where_it_was_stopped_and_is_no_other(tmp_path: Path) -> None:
    first = Kept(tmp_path, {"turns": 2, "weights": "a"})
    one = window(BLS.name, 8, 0, 60.0, bytes=200.0)
    first.keep(one)
    again = Kept(tmp_path, {"turns": 2, "weights": "a"})
    assert again.windows == {one.key: one}
    assert one.key in again
    assert Key(1, BLS.name, 8) not in again
    with pytest.raises(UsageError, match="another weights"):
        Kept(tmp_path, {"turns": 2, "weights": "b"})


def test_what_others_take_of_the_machine_is_neither_the_bench_nor_what_it_started() -> None:
    looks = [windows.CpuUsed({}, 5.0, 100.0), windows.CpuUsed({}, 8.0, 104.0)]
    assert windows.foreign(looks, 2.0) == 0.5


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
    assert "B, int8" in engine_report.verdict(run)
    assert engine_report.rows(run)[0][6] == "98.0 % (too few)"
    assert "No engine" in engine_report.verdict(EngineRun(found[:1], 500, 8.0, ""))


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
