"""Exercises: their questions, a student's predictions and answers; and the server's state before the lab.

Each question has a file in the folder of the lab. It keeps every prediction with its time, from when on the
student could see the measurement, and the last answer.
"""

from __future__ import annotations

import datetime
import html
import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gourmet.bench.results import Estimate
from gourmet.bench.workload import Addresses
from gourmet.errors import GourmetError, UsageError
from gourmet.reports import chart, machine
from gourmet.reports.chart import Span
from gourmet.repository.models import read_config, repository_of
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
AFTER: Final = "after the measurement"
# The samples as perf_analyzer takes them.
_INPUT: Final = "input.json"
_KEY: Final = re.compile(r"([LD]?\d+)([a-z])")
# What a text of an explanation rests on.
BASES: Final = {"measured": "Measured", "computed": "Computed", "known": "Known from elsewhere"}

Texts = Mapping[str, Any]
Answer = dict[str, Any]


def folder() -> Path:
    """Return the folder of a student's lab."""
    usual = home() / "lab" if IS_INSTALLED else Path("runs") / "lab"
    return Path(os.environ.get(FOLDER_ENV) or usual).absolute()


@cache
def explanations() -> Mapping[str, Texts]:
    """Read for each question its unit, and texts for figures below a number; the last is for the rest."""
    return tomllib.loads(Path(__file__).with_name("explanations.toml").read_text())


def questions(exercise: str) -> list[str]:
    keys = (_KEY.fullmatch(key) for key in explanations())
    return [key[0] for key in keys if key and key[1] == exercise]


def read_answer(path: Path) -> Answer:
    answer: Answer = json.loads(path.read_text()) if path.exists() else {}
    return answer if "predictions" in answer else {"key": path.stem, "predictions": []}


def counted(answer: Answer) -> dict[str, Any]:
    """Return the prediction that is judged: the last one before the measurement."""
    prediction: dict[str, Any] = [made for made in answer["predictions"] if made["when"] != AFTER][-1]
    return prediction


@dataclass
class Exercise:
    """The state of the exercise that runs in this notebook."""

    url: str
    name: str = ""
    before: dict[str, Any] = field(default_factory=dict)  # configs; None for models that were not loaded
    shown: dict[str, Any] = field(default_factory=dict)  # the last measurement: text, drawing and rows
    facts: dict[str, object] = field(default_factory=dict)  # its runs by name, for the explanations
    restorer: subprocess.Popen[str] | None = None
    app_url: str = ""

    @property
    def addresses(self) -> Addresses:
        return Addresses.of(self.url, app_url=self.app_url)

    def check_predicted(self, *keys: str) -> None:
        """Raise UsageError unless these questions, or all of the exercise, are predicted."""
        for key in keys:
            self.check_question(key)
        wanted = keys or questions(self.name)
        if missing := [key for key in wanted if not read_answer(_answer_file(key))["predictions"]]:
            raise UsageError(
                f"exercise {self.name} asks before it measures: put your low and high in place of the dots "
                f"of {', '.join(missing)}, run that cell, and then this one again"
            )

    def check_question(self, key: object) -> None:
        if key not in (known := questions(self.name)):
            raise UsageError(f"{key!r} is not a question of exercise {self.name}: {', '.join(known)}")

    def note_measured(self, *keys: str) -> None:
        """Note that the student may have seen the measurement: a later prediction comes after it."""
        for key in keys or questions(self.name):
            answer = read_answer(_answer_file(key))
            answer.setdefault("seen", now())
            _write(answer)

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
    if not questions(str(exercise)):
        known = dict.fromkeys(key[1] for key in map(_KEY.fullmatch, explanations()) if key)
        raise UsageError(f"there is no exercise {exercise}; there are {', '.join(known)}")
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
    _exercise.name, _exercise.app_url = str(exercise), app_url
    _exercise.shown, _exercise.facts = {}, {}
    with connect(url, LOADS_WITHIN_S) as triton:
        for model in models or ("food_first",):
            _exercise.remember(model)
            if (path := repository_of(model) / model).is_dir():
                triton.load(model, as_json(read_config(path)))
        about = {"server": triton.version(), **machine.about(), "last begun": now()}
    path = folder() / MACHINE_FILE
    kept = json.loads(path.read_text()) if path.exists() else {}
    about = {"first begun": kept.get("first begun", about["last begun"]), **about}
    path.write_text(json.dumps(about, indent=1))
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
    shutil.copytree(repository_of(model) / model, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = copy / "1" / "model.py"
    for old, new in edits:
        if old not in code.read_text():
            raise UsageError(f"{code} has no {old!r} to replace")
        code.write_text(code.read_text().replace(old, new))
    return code


def predict(question: str, low: float | EllipsisType, high: float | EllipsisType) -> None:
    """Predict the interval of the answer, so wide that you would be right 9 times in 10.

    The first prediction is kept with its time. A change is noted, and one after the measurement counts no
    more.
    """
    exercise, key = current(), str(question).partition(":")[0]
    exercise.check_question(key)
    answer = {**read_answer(_answer_file(key)), "question": question}
    made = answer["predictions"]
    if low is ... or high is ...:
        kept = f"your prediction stays: {_words(counted(answer))}" if made else ""
        print(f"{key}: {kept or 'put two numbers in place of the dots, and run this cell again'}")  # noqa: T201
        return
    if any(isinstance(edge, bool) or not isinstance(edge, int | float) for edge in (low, high)) or low > high:
        raise UsageError(
            f"{key}: low and high must be two numbers, the lower first; they are {low!r} and {high!r}"
        )
    when = (AFTER if "seen" in answer else "before the measurement") if made else "first"
    if not made or (made[-1]["low"], made[-1]["high"]) != (low, high):
        made.append({"low": float(low), "high": float(high), "at": now(), "when": when})
        _write(answer)
    late = f"; {_words(made[-1])} came after the measurement and is only noted" * (made[-1]["when"] == AFTER)
    print(f"{key}: {_words(counted(answer))}{late}")  # noqa: T201


def require(*keys: str) -> None:
    """Refuse to go on unless these questions are predicted; a prediction from now on is late."""
    current().check_predicted(*keys)
    current().note_measured(*keys)


@dataclass(frozen=True)
class Verdict:
    words: str
    explanation: tuple[str, ...]  # what each text rests on, and the text


def judged(
    guess: tuple[float, float],
    figure: Figure,
    texts: Texts,
    facts: Mapping[str, object] = MappingProxyType({}),
) -> Verdict:
    """Compare a guess with a figure; undecided only if the interval of the figure allows both."""
    estimate = figure.estimate
    if math.isnan(estimate.value):
        return Verdict("not measured", (figure.disturbed,))
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    if guess[0] <= low and high <= guess[1]:
        words = "as you predicted"
    elif high < guess[0] or low > guess[1]:
        words = f"{'less' if high < guess[0] else 'more'} than you predicted"
    else:
        words = "undecided: the interval lies across an edge of your prediction"
    limits = [float(name) for name in texts if name not in ("unit", "otherwise")]
    place, first, last = (sum(edge >= limit for limit in limits) for edge in (estimate.value, low, high))
    choice: Mapping[str, str] = [text for name, text in texts.items() if name != "unit"][place]
    facts = {"cores": available_cpus(), "figure": estimate.value, **facts}
    explanation = list[str]()
    for basis, text in choice.items():
        # A student's arm may have another name, or was not measured.
        with suppress(KeyError, AttributeError, GourmetError):
            explanation.append(f"{BASES[basis]}: {text.format(**facts)}")
    if first != last:
        edge = limits[place - 1] if first < place else limits[place]
        explanation.append(
            f"The interval reaches across {edge:g}, where another explanation begins: measure longer "
            "(GOURMET_LAB_SECONDS) to tell."
        )
    if figure.disturbed:
        explanation.append(f"Disturbed: {figure.disturbed}. {_DISTURBED[figure.is_in_turns]}")
    return Verdict(words, tuple(explanation))


_DISTURBED: Final = {
    True: "Both arms were measured in turns beside it, so their ratio is comparable all the same.",
    False: "The machine alone would give another figure.",
}


def answer(key: str, figure: Figure | float) -> Shown:
    """Compare your prediction with the measurement, and explain it."""
    from gourmet.lab.measuring import Figure, as_image

    exercise = current()
    exercise.check_predicted(key)
    if isinstance(figure, int | float) and not isinstance(figure, bool):
        figure = Figure(Estimate(float(figure)))
    if not isinstance(figure, Figure):
        raise UsageError(f"{key}: the figure must be a number, or what times, average and so on return")
    texts, kept = explanations()[key], read_answer(_answer_file(key))
    prediction, unit, estimate = counted(kept), texts["unit"], figure.estimate
    guess = prediction["low"], prediction["high"]
    verdict = judged(guess, figure, texts, exercise.facts)
    drawing = "" if math.isnan(estimate.value) else _guess_and_interval(guess, estimate, unit)
    kept["measured"] = {
        **{"value": estimate.value, "low": estimate.low, "high": estimate.high, "unit": unit},
        **{"text": f"{estimate:.3g} {unit}", "at": now(), "disturbed": figure.disturbed},
        **{"verdict": verdict.words, "explanation": verdict.explanation, "drawing": drawing},
        "runs": exercise.shown,
    }
    kept.setdefault("seen", now())
    _write(kept)
    _answer_file(key).with_suffix(".svg").write_text(drawing)
    figures = f"Predicted {_words(prediction)}, measured {estimate:.3g} {unit}."
    shown = Shown("\n".join([f"{key}: {verdict.words}. {figures}", *verdict.explanation]))
    shown.html = f"<p>{html.escape(shown).replace(chr(10), '<br>')}</p>{as_image(drawing)}"
    return shown


def _words(prediction: Mapping[str, Any]) -> str:
    return f"{prediction['low']:g} to {prediction['high']:g}"


def _answer_file(key: str) -> Path:
    path = folder() / ANSWERS / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write(answer: Answer) -> None:
    _answer_file(answer["key"]).write_text(json.dumps(answer, indent=1, ensure_ascii=False))


def _guess_and_interval(guess: tuple[float, float], measured: Estimate, unit: str) -> str:
    """Draw the prediction above the measurement, on an axis around the measurement."""
    low, high = measured.low or measured.value, measured.high or measured.value
    rows = [
        Span("your prediction", *guess, colour=chart.COLOURS[1], says=f"{guess[0]:g} to {guess[1]:g}"),
        Span("measured", low, high, measured.value, says=f"{measured.value:.3g}"),
    ]
    return chart.spans(rows, "prediction and measurement", unit, around=measured.value)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
