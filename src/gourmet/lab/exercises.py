"""Exercises: predictions, measurements and explanations; and the server's state before the lab."""

from __future__ import annotations

import datetime
import html
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final

from gourmet import repository
from gourmet.bench.results import Estimate
from gourmet.bench.workload import Addresses
from gourmet.errors import UsageError
from gourmet.reports import chart, machine
from gourmet.reports.chart import Bar
from gourmet.served.files import IS_INSTALLED, home, shipped
from gourmet.served.instances import available_cpus
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.stack.run_file import found_url
from gourmet.triton_client.address import SERVER_ENV
from gourmet.triton_client.model_config import as_json

if TYPE_CHECKING:
    from gourmet.lab.measuring import Figure

FOLDER_ENV: Final = "GOURMET_LAB"
MACHINE_FILE: Final = "machine.json"
ANSWERS: Final = "answers"
# The samples as perf_analyzer takes them.
_INPUT: Final = "input.json"
_KEY: Final = re.compile(r"(L?\d+)([a-z])")


def folder() -> Path:
    """Return the folder of a student's lab."""
    usual = home() / "lab" if IS_INSTALLED else Path("runs") / "lab"
    return Path(os.environ.get(FOLDER_ENV) or usual).absolute()


@cache
def explanations() -> Mapping[str, dict[str, str]]:
    """Read for each question its unit, and texts for figures below a number; the last is for the rest."""
    return tomllib.loads(Path(__file__).with_name("explanations.toml").read_text())


@dataclass
class Exercise:
    """The state of the exercise that runs in this notebook."""

    url: str
    name: str = ""
    guesses: dict[str, tuple[float, float]] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)  # configs; None for models that were not loaded
    runs: tuple[str, str] = ("", "")  # the last measurement, as text and as a drawing
    restorer: subprocess.Popen[str] | None = None
    app_url: str = ""

    @property
    def addresses(self) -> Addresses:
        return Addresses.of(self.url, app_url=self.app_url)

    def questions(self) -> list[str]:
        keys = (_KEY.fullmatch(key) for key in explanations())
        return [key[0] for key in keys if key and key[1] == self.name]

    def check_predicted(self) -> None:
        if missing := [key for key in self.questions() if key not in self.guesses]:
            raise UsageError(
                f"exercise {self.name} asks before it measures: put your low and high in place of the dots "
                f"of {', '.join(missing)}, run that cell, and then this one again"
            )

    def keep_runs(self, text: str, drawing: str) -> None:
        self.runs = text, drawing
        with (folder() / "runs.txt").open("a") as file:
            file.write(f"exercise {self.name}, {_now()}\n{text}\n\n")

    def remember(self, model: str) -> None:
        """Note the model's state, to be restored when the kernel ends or `end` is called."""
        if model in self.before:
            return
        with connect(self.url, LOADS_WITHIN_S) as triton:
            self.before[model] = triton.config(model) if model in triton.ready_models() else None
        if self.restorer is None or self.restorer.poll() is not None:
            command = [sys.executable, "-P", "-m", "gourmet.lab.restoring", self.url]
            # Its input ends with the kernel. Signals to the kernel do not reach a session of its own.
            self.restorer = subprocess.Popen(
                command, stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        assert self.restorer.stdin
        print(json.dumps([model, self.before[model]]), file=self.restorer.stdin, flush=True)


_exercise: Exercise | None = None


def current() -> Exercise:
    if _exercise is None:
        raise UsageError("no exercise was begun in this kernel: run the cell with begin(…) first")
    return _exercise


class Shown(str):
    """A text for a terminal that a notebook shows as HTML."""

    html = ""

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return str(self)


def begin(exercise: int | str, *models: str, app_url: str = "") -> None:
    """Begin an exercise: load each of its models, or food_first, with the config of its file.

    `app_url` (host:port) is the web app's, if it is not that of the running stack.
    """
    global _exercise
    scripts = sysconfig.get_path("scripts")
    if scripts not in os.environ["PATH"].split(os.pathsep):  # for `!gourmet …` and `!perf_analyzer …`
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ["PATH"]])
    url = os.environ[SERVER_ENV] = os.environ.get(SERVER_ENV) or found_url()
    if _exercise is None or _exercise.url != url:
        _exercise = Exercise(url)
    os.environ[FOLDER_ENV] = str(folder())
    folder().mkdir(parents=True, exist_ok=True)
    os.chdir(folder())
    if not Path(_INPUT).exists():
        shutil.copy(shipped("notebooks") / _INPUT, _INPUT)
    _exercise.name, _exercise.runs, _exercise.app_url = str(exercise), ("", ""), app_url
    with connect(url, LOADS_WITHIN_S) as triton:
        for model in models or ("food_first",):
            _exercise.remember(model)
            if (path := repository.DEFAULT / model).is_dir():
                triton.load(model, as_json(repository.read_config(path)))
        about = {"server": triton.version(), **machine.about(), "begun": _now()}
    (folder() / MACHINE_FILE).write_text(json.dumps(about, indent=1))
    print(f"exercise {exercise}: {about['server']} at {url}; {about['cpus']} CPUs, {about['processor']}")  # noqa: T201


def end() -> None:
    """Restore what the server served before the lab."""
    exercise = current()
    if exercise.restorer and exercise.restorer.stdin:
        exercise.restorer.stdin.close()
        exercise.restorer.wait(LOADS_WITHIN_S)
    exercise.restorer, exercise.before = None, {}


def copy_of(model: str, name: str, *edits: tuple[str, str]) -> Path:
    """Copy a served model into the folder of the lab, with these edits of its model.py, each (old, new)."""
    copy = folder() / name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(repository.DEFAULT / model, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = copy / "1" / "model.py"
    for old, new in edits:
        if old not in code.read_text():
            raise UsageError(f"{code} has no {old!r} to replace")
        code.write_text(code.read_text().replace(old, new))
    return code


def predict(question: str, low: float | EllipsisType, high: float | EllipsisType) -> None:
    """Predict the interval of the answer, so wide that you would be right 9 times in 10."""
    exercise, key = current(), question.partition(":")[0]
    if key not in exercise.questions():
        raise UsageError(
            f"{key!r} is not a question of exercise {exercise.name}: {', '.join(exercise.questions())}"
        )
    exercise.guesses.pop(key, None)
    if low is ... or high is ...:
        print(f"{key}: put two numbers in place of the dots, and run this cell again")  # noqa: T201
        return
    if not all(isinstance(edge, int | float) for edge in (low, high)) or not low <= high:
        raise UsageError(
            f"{key}: low and high must be two numbers, the lower first; they are {low!r} and {high!r}"
        )
    exercise.guesses[key] = float(low), float(high)
    path, kept = _answer_file(key), {"question": question, "low": low, "high": high, "at": _now()}
    if path.exists() and "verdict" in (before := json.loads(path.read_text())):
        kept["late"] = f"first {before['low']} to {before['high']}; changed after the measurement"
    path.write_text(json.dumps(kept))
    print(f"{key}: between {low:g} and {high:g}")  # noqa: T201


@dataclass(frozen=True)
class Verdict:
    words: str
    explanation: str


def judged(guess: tuple[float, float], figure: Figure, texts: Mapping[str, str]) -> Verdict:
    """Compare a guess with a figure; undecided if it was disturbed, or if its interval allows both."""
    if figure.disturbed:
        again = "Close other programs here and run the measuring cell again."
        return Verdict("undecided here", f"The measurement was disturbed: {figure.disturbed}. {again}")
    estimate = figure.estimate
    low, high = estimate.low or estimate.value, estimate.high or estimate.value
    if guess[0] <= low and high <= guess[1]:
        words = "as you predicted"
    elif high < guess[0] or low > guess[1]:
        words = f"{'less' if high < guess[0] else 'more'} than you predicted"
    else:
        words = "undecided here: the interval lies across an edge of your prediction"
    limits = [float(name) for name in texts if name not in ("unit", "otherwise")]
    choices = [text for name, text in texts.items() if name != "unit"]
    first, last = (sum(edge >= limit for limit in limits) for edge in (low, high))
    possible = [text.format(cores=available_cpus()) for text in choices[first : last + 1]]
    return Verdict(words, " — or, which the interval allows too: ".join(possible))


def answer(key: str, figure: Figure | float) -> Shown:
    """Compare your prediction with the measurement, and explain it."""
    from gourmet.lab.measuring import Figure, as_image

    exercise = current()
    exercise.check_predicted()
    if not isinstance(figure, Figure):
        figure = Figure(Estimate(float(figure)))
    texts, guess = explanations()[key], exercise.guesses[key]
    verdict, unit = judged(guess, figure, texts), texts["unit"]
    measured = f"{figure.estimate:.3g} {unit}"
    drawing = _guess_and_interval(guess, figure.estimate, unit)
    path = _answer_file(key)
    kept = json.loads(path.read_text())
    kept |= {"measured": measured, "verdict": verdict.words, "explanation": verdict.explanation}
    kept |= {
        "drawing": drawing,
        "runs": exercise.runs[0],
        "runs_drawing": exercise.runs[1],
        "measured_at": _now(),
    }
    path.write_text(json.dumps(kept))
    path.with_suffix(".svg").write_text(drawing)
    figures = f"Predicted {guess[0]:g} to {guess[1]:g}, measured {measured}."
    shown = Shown(f"{key}: {verdict.words}. {figures}\n{verdict.explanation}")
    shown.html = f"<p>{html.escape(shown).replace(chr(10), '<br>')}</p>{as_image(drawing)}"
    return shown


def _answer_file(key: str) -> Path:
    path = folder() / ANSWERS / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _guess_and_interval(guess: tuple[float, float], measured: Estimate, unit: str) -> str:
    """Draw the prediction above the measurement, each as an interval with its middle."""
    if measured.value != measured.value:
        return ""
    rows = [
        Bar("your prediction", sum(guess) / 2, *guess, chart.COLOURS[1], f"{guess[0]:g} to {guess[1]:g}"),
        Bar("measured", measured.value, measured.low, measured.high, says=f"{measured.value:.3g}"),
    ]
    end = 1.3 * max(measured.value, min(guess[1], 3 * measured.value))
    return chart.bars(rows, "prediction and measurement", unit, end=end)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
