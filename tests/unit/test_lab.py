"""The lab's questions, predictions, verdicts and hand-in, without a server."""

from __future__ import annotations

import json
import re
import socket
import string
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from support.cli import gourmet
from support.listener import Listen
from support.triton import ROOT

from gourmet.bench import validity
from gourmet.bench.results import Estimate
from gourmet.bench.workload import WrongAnswers, check_outputs
from gourmet.commands import lab as lab_command
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.errors import UsageError
from gourmet.lab import exercises
from gourmet.lab.exercises import Exercise, answer, begin, explanations, judged, predict, require
from gourmet.lab.measuring import Figure, Run, arm, gpu_use, named_as_in_a_notebook
from gourmet.reports import chart
from gourmet.reports.chart import Span
from gourmet.stack.preflight import NotReadyToStart, free_ports
from gourmet.triton_client.errors import ModelUnavailable

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TEXTS = {
    "unit": "times",
    "1.2": {"measured": "low, {run.rows_per_s:.0f} rows/s", "known": "known"},
    "2": {"measured": "middle"},
    "otherwise": {"computed": "high of {cores}"},
}


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of a lab, in which exercise 3 runs without a server."""
    monkeypatch.setenv("GOURMET_LAB", str(tmp_path))
    monkeypatch.setattr(exercises, "_exercise", Exercise("nowhere", "3"))
    (tmp_path / "machine.json").write_text('{"server": "triton 2.51.0", "first begun": "2026-11-28"}')
    return tmp_path


def kept(lab: Path, key: str = "3a") -> dict[str, Any]:
    """What a question's file has."""
    data: dict[str, Any] = json.loads((lab / "answers" / f"{key}.json").read_text())
    return data


@pytest.mark.parametrize(
    ("figure", "words", "explanation"),
    [
        # The run that the first text is about was not measured here, so the text is left out.
        (Estimate(1.0, 0.9, 1.1), "as you predicted", "Known from elsewhere: known"),
        (Estimate(0.4), "less than you predicted", "Known from elsewhere: known"),
        (Estimate(9.0, 8.0, 10.0), "more than you predicted", "Computed: high of "),
        (Estimate(1.3, 1.1, 1.6), "undecided: the interval lies across an edge", "Measured: middle"),
        (Estimate(float("nan")), "not measured", ""),
    ],
)
def test_a_verdict_follows_the_interval_and_the_explanation_the_figure(
    figure: Estimate, words: str, explanation: str
) -> None:
    verdict = judged((0.8, 1.4), Figure(figure), TEXTS)
    assert verdict.words.startswith(words)
    assert verdict.explanation[0].startswith(explanation)
    if words.startswith("undecided"):
        assert verdict.explanation[1].startswith("The interval reaches across 1.2, where another")


@pytest.mark.parametrize(("in_turns", "note"), [(True, "comparable all the same"), (False, "another figure")])
def test_a_disturbed_figure_has_its_verdict_and_explanation_and_a_mark(in_turns: bool, note: str) -> None:
    figure = Figure(Estimate(1.6, 1.5, 1.7), "other programs used 1.5 of 2 cores", in_turns)
    verdict = judged((0, 9), figure, TEXTS)
    assert verdict.words == "as you predicted"
    assert verdict.explanation[0] == "Measured: middle"
    assert verdict.explanation[1].startswith("Disturbed: other programs used 1.5 of 2 cores. ")
    assert note in verdict.explanation[1]


def test_a_disturbed_measurement_is_kept_with_the_reason_if_asked() -> None:
    with pytest.raises(validity.Disturbed):
        validity.generator_had_time(0.95)
    assert "the client was busy for 95%" in validity.generator_had_time(0.95, keep=True).failure
    assert not validity.generator_had_time(0.5, keep=True).failure


def test_the_first_prediction_is_kept_and_each_change_is_noted(lab: Path) -> None:
    question = "3a: how much?"
    predict(question, 1, 2)
    first = kept(lab)["predictions"]
    predict(question, 1.0, 2.0)
    assert kept(lab)["predictions"] == first
    predict(question, 1, 3)
    predict("3b: how long?", 10, 17)
    require("3a", "3b")  # the student may see the table now
    predict(question, 2.9, 3.1)
    shown = answer("3a", 3.05)
    assert "undecided" not in shown
    assert shown.startswith("3a: more than you predicted. Predicted 1 to 3, measured 3.05")
    made = kept(lab)["predictions"]
    assert [one["when"] for one in made] == ["first", "before the measurement", "after the measurement"]
    assert made[0] == first[0]


def test_a_figure_survives_until_it_is_measured_again(lab: Path) -> None:
    predict("3a: how much?", 1, 2)
    answer("3a", 1.5)
    predict("3a: how much?", ..., ...)
    predict("3a: how much?", 1.2, 1.3)
    assert kept(lab)["measured"]["text"] == "1.5 times"
    assert "Predicted 1 to 2, measured 1.6" in answer("3a", 1.6)
    assert kept(lab)["measured"]["text"] == "1.6 times"


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        (lambda: predict("9z: what?", 1, 2), "'9z' is not a question of exercise 3: 3a, 3b, 3c"),
        (lambda: predict("3a: what?", 2, 1), "3a: low and high must be two numbers, the lower first"),
        (lambda: predict("3a: what?", True, 2), "3a: low and high must be two numbers"),
        (lambda: predict(True, 2, 3), "'True' is not a question of exercise 3"),  # type: ignore[arg-type]
        (lambda: answer("zz", 3), "'zz' is not a question of exercise 3"),
        (
            lambda: answer("3a", 3),
            "exercise 3 asks before it measures: put your low and high in place of the",
        ),
        (lambda: begin(99), "there is no exercise 99; there are 1, 2, 3"),
        (lambda: arm("m", instance=2), "instance is not a setting of an arm; there are instances, threads"),
        (lambda: arm("m", clients=0), "an arm needs clients and rows of at least 1"),
        (lambda: arm("m", cpu=True, gpus=(0,)), "give either cpu=True or gpus"),
    ],
)
def test_a_wrong_call_ends_in_a_sentence_with_the_names_of_the_notebook(call: Any, refusal: str) -> None:
    with pytest.raises(UsageError, match=re.escape(refusal)):
        call()


def test_an_error_of_triton_keeps_its_kind_and_names_the_notebook_s_setting() -> None:
    with pytest.raises(ModelUnavailable, match=r"use a longer GOURMET_LAB_SECONDS"), named_as_in_a_notebook():
        raise ModelUnavailable("m", (), "UNAVAILABLE", "use a longer --window", 400)


def test_an_arm_shows_the_stanzas_that_it_sends() -> None:
    shown = repr(arm("food_first", clients=8, instances=2, delay_us=100))
    assert re.search(r"(?s)food_first, c=8.*count: 2.*max_queue_delay_microseconds: 100", shown)
    assert "INPUT_IMAGE" not in shown


@pytest.mark.parametrize(("low", "high", "arrows"), [(0.5, 2, 0), (0, 2, 1), (1e-4, 1e-3, 1), (0, 1e6, 2)])
def test_a_prediction_is_a_span_on_a_logarithmic_axis_with_an_arrow_where_it_goes_on(
    low: float, high: float, arrows: int
) -> None:
    rows = [Span("your prediction", low, high), Span("measured", 0.9, 1.1, 1.0)]
    drawing = chart.spans(rows, "both", "times", around=1.0)
    assert drawing.count("class='arrow'") == arrows
    ticks = [float(mark) for mark in re.findall(r"text-anchor='middle' fill='#666'>([\d.e-]+)<", drawing)]
    assert 2 <= len(ticks) <= 12
    assert all(f"{mark:e}"[0] in "125" for mark in ticks)
    for x, width in re.findall(r"<rect x='([\d.]+)' y='[\d.]+' width='([\d.]+)'", drawing):
        assert 14 <= float(x) <= float(x) + float(width) <= chart.WIDTH


def test_a_missing_output_is_refused_with_its_name() -> None:
    outputs = tuple(TensorSpec(name, "BYTES", (-1, 1)) for name in ("FOOD_LABEL", "PROBABILITY"))
    info = ModelInfo("mine", (), outputs)
    with pytest.raises(WrongAnswers, match="mine does not answer FOOD_LABEL, which its config declares"):
        check_outputs(info, {"FOOD_LABLE": np.zeros(1), "PROBABILITY": np.zeros(1)})


def hand_in(*words: str) -> str:
    return gourmet("lab", *words).output


def test_the_page_has_name_tables_and_lists_and_a_class_becomes_one_table(lab: Path) -> None:
    assert "has no 'handin': did you mean hand-in?" in hand_in("handin")
    assert "has no answer yet" in hand_in("hand-in")
    for question, high in (("3a: how much?", 2), ("3a: how much?", 1.8), ("3b: how long?", 2)):
        predict(question, 1, high)
    answer("3a", Figure(Estimate(1.8, 1.7, 1.9), "other programs used 1.0 of 2 cores"))
    answer("3b", 9.0)
    box = nbformat.v4.new_markdown_cell("**Why?**\n\nFirst <b>this</b>\ngoes on.\n\n- one\n- two\n")
    box.metadata["tags"] = ["box"]
    code = nbformat.v4.new_code_cell("# my loop\na = 1\nb = 2\nc = 3\nd = 4\ne = 5")
    cells = [nbformat.v4.new_markdown_cell("## 3 · More"), code, box]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), lab / "triton.ipynb")
    assert hand_in("hand-in", "--name", "Ada Byron") == f"written: {lab / 'hand-in.html'}\n"
    page = (lab / "hand-in.html").read_text()
    assert "<h1>The lab of Ada Byron</h1>" in page
    assert "Of 2 figures 0 were as predicted, 1 were not, 1 are undecided." in page
    assert "<p>First &lt;b&gt;this&lt;/b&gt; goes on.</p><ul><li>one<li>two</ul>" in page
    assert "<summary><code># my loop</code>" in page
    assert "changed before the measurement to 1 to 1.8" in page
    assert (lab / "hand-in.csv").read_text().count("\n") == 3
    assert hand_in("hand-in").startswith("written")  # the name is kept
    table = hand_in("collect", str(lab.parent))
    assert "Ada Byron" in table
    heads, row = (lab.parent / "class.csv").read_text().splitlines()
    values = dict(zip(heads.split(","), row.split(","), strict=True))
    names = ("as predicted", "otherwise", "undecided", "changed before", "disturbed")
    assert [values[name] for name in names] == ["0", "1", "1", "1", "1"]
    assert values["first begun"] == "2026-11-28"


def test_a_taken_port_is_replaced_unless_it_was_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, (free,) = taken.getsockname()[1], free_ports(1)
        chosen = lab_command._free({"port": port, "http_port": free}, ())
        assert chosen["port"] != port
        assert chosen["http_port"] == free
        with pytest.raises(NotReadyToStart, match=f"port {port} .* with --port"):
            lab_command._free({"port": port}, {"port"})


def exercise_cells(path: Path) -> dict[str, list[Any]]:
    """The cells of each exercise of a notebook."""
    by_exercise: dict[str, list[Any]] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if heading := re.match(r"## ([LD]?\d+)", cell.source):
            by_exercise[heading[1]] = []
        if by_exercise:
            list(by_exercise.values())[-1].append(cell)
    return by_exercise


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_is_measured_before_its_questions_are_asked(path: Path) -> None:
    for exercise, cells in exercise_cells(path).items():
        asked: list[str] = []
        for cell in cells:
            asked += re.findall(r'^predict\("(\w+):', cell.source, re.MULTILINE)
            pattern = r"^(require|runs = measure|.* = measure|def share)\b"
            measures = re.search(pattern, cell.source, re.MULTILINE)
            named = re.findall(r'"(\w+)"', " ".join(re.findall(r"require\(.*\)|\*\(.*\)", cell.source)))
            if measures:
                assert asked, cell.source
                assert set(named) <= set(asked)
            for key in re.findall(r'^answer\("(\w+)"', cell.source, re.MULTILINE):
                assert key in asked
        assert sorted(asked) == sorted(exercises.questions(exercise))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_explanations_name_figures_that_their_notebook_measures(path: Path) -> None:
    for exercise, cells in exercise_cells(path).items():
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        for key in exercises.questions(exercise):
            for texts in (value for name, value in explanations()[key].items() if name != "unit"):
                assert texts.keys() <= exercises.BASES.keys(), key
                for text in texts.values():
                    for _, name, _, _ in string.Formatter().parse(text):
                        run, _, figure = (name or "cores").partition(".")
                        assert run == "cores" or (f"{run}=arm(" in code and hasattr(Run, figure)), (key, name)


def test_the_committed_notebooks_give_no_answer_away_and_ask_all_questions() -> None:
    all_questions, boxes = [], 0
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert not any(cell.get("outputs") for cell in cells)
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        questions = re.findall(r'^predict\("(\w+): .*", \.\.\., \.\.\.\)$', text, re.MULTILINE)
        assert sorted(questions) == sorted(re.findall(r'answer\("(\w+)"', text))
        all_questions += questions
        exercises_of = [cell for cell in cells if re.match(r"## [LD]?\d", cell.source)]
        boxes += len([cell for cell in cells if cell.metadata.get("tags") == ["box"]]) - len(exercises_of)
    assert sorted(all_questions) == sorted(explanations())
    assert boxes == 0


BUSY = b"""nv_gpu_utilization{gpu_uuid="GPU-a"} 0.87
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1900000000
"""


@pytest.mark.parametrize(("of_gpus", "shown"), [(BUSY, "87% 1.9 GB"), (b"", "no GPU")], ids=["one", "none"])
def test_a_measurement_shows_the_gpu_by_tritons_metrics(
    listen: Listen, monkeypatch: pytest.MonkeyPatch, of_gpus: bytes, shown: str
) -> None:
    text = b"nv_cpu_utilization 0.25\n" + of_gpus
    answered = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
    monkeypatch.setenv("TRITON_METRICS_URL", f"http://{listen({'/metrics': answered}).url}/metrics")
    assert gpu_use("triton:8000") == shown
    monkeypatch.setenv("TRITON_METRICS_URL", "http://127.0.0.1:1/metrics")
    assert gpu_use("triton:8000") == "?"
