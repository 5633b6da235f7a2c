"""`python -P benchmarks/peers.py`: what a user would pick instead, on the same photos and cores.

Everybody serves the same ONNX file, and every answer is compared with that file's without a server.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal

import click
import numpy as np
import onnxruntime as ort
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gourmet.bench.results import LoadSpec, Point
from gourmet.bench.transports import Http, RawReply, Request, photo_request
from gourmet.bench.validity import WrongAnswers
from gourmet.bench.workload import MeasureOptions, ask_each
from gourmet.commands.progress import bar
from gourmet.commands.values import POSITIVE, counts
from gourmet.pictures.certainty import Floats
from gourmet.pictures.decode import Pixels
from gourmet.pictures.made_up import views
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.repository.versions import newest_version
from gourmet.served.instances import available_cpus
from gourmet.stack.preflight import free_ports
from gourmet.systems.food11.contract import SYSTEM
from harness import (
    Contender,
    Goal,
    Measure,
    Row,
    gourmet_up,
    main,
    measure,
    measure_in_turns,
    no_server,
    programs,
    publish,
    ratio_goal,
    started,
    window_options,
)

SERVERS: Final = Path(__file__).resolve().parent / "servers"
# The default model: the network in eight bits.
MODEL: Final = "food_classifier_int8"
# The concurrency for which goals were set.
GOAL_LEVEL: Final = 8
# As many as one classroom; a refusal is an error.
CROWDS: Final = (64, 128)
# Without a server, a session for each processor.
_LEVELS: Final = {"no server": available_cpus()}
# TorchScript and ONNX Runtime, or one thread and two, round differently; answers that differ by more
# than this are of other pixels or another model.
TOLERANCE: Final = 2e-3
_MAX_ALIKE: Final = 0.1
_SEED: Final = 11

Decode = Callable[[bytes], Pixels]
Decoder = Literal["ours", "peers"]
Role = Literal["ours", "peers", "no server"]


# --- photos and their right answers


@dataclass(frozen=True)
class PhotoSet:
    """Different photos of one size, the same ones every time; a large one takes a second to draw."""

    name: str
    count: int
    width: int
    height: int
    quality: int

    @cached_property
    def photos(self) -> tuple[bytes, ...]:
        size = self.width, self.height
        return tuple(views(SYSTEM.sample(), self.count, size=size, seed=_SEED, quality=self.quality))

    def __str__(self) -> str:
        kilobytes = [len(photo) / 1000 for photo in self.photos]
        return (
            f"{self.name}: {self.count} photos of {self.width}×{self.height}, JPEG quality {self.quality}, "
            f"{min(kilobytes):.0f} to {max(kilobytes):.0f} kB"
        )


# As on the web, and as from phones.
SETS: Final = {"small": PhotoSet("small", 64, 400, 300, 85), "phone": PhotoSet("phone", 8, 4000, 3000, 92)}

# The probabilities [photos, labels], by the name of a set of photos, and by who decodes them.
Expected = Mapping[tuple[str, Decoder], Floats]


def served() -> Path:
    """Return the ONNX file that everybody serves."""
    return newest_version(DEFAULT_REPOSITORY / MODEL) / "model.onnx"


def expected_answers(sets: Mapping[str, PhotoSet]) -> Expected:
    """Return the right answers for photos that we decode, and for those that peers decode plainly."""
    plain: Decode = runpy.run_path(str(SERVERS / "plain.py"))["decode"]
    decoders: dict[Decoder, Decode] = {"ours": SYSTEM.pixels, "peers": plain}
    return {
        (name, decoder): _rows(photo_set.photos, decode)
        for name, photo_set in sets.items()
        for decoder, decode in decoders.items()
    }


def _rows(photos: Sequence[bytes], decode: Decode) -> Floats:
    """Return the probabilities [photos, labels]; raise unless nine of ten photos have their own."""
    answer = answering()
    expected = np.array([answer(decode(photo)) for photo in photos])
    apart = np.abs(expected[:, np.newaxis] - expected[np.newaxis]).max(axis=2)
    # A network is equally sure of some photos. Thousands of answers show a mix-up if most photos differ.
    if len(photos) > 1 and (np.partition(apart, 1, axis=1)[:, 1] <= 2 * TOLERANCE).mean() > _MAX_ALIKE:
        raise WrongAnswers("many photos have the same answer: mixed-up rows would not show")
    return expected


def answering(threads: int = 0) -> Callable[[Pixels], Floats]:
    """Return a function from pixels to probabilities, on `threads` threads (0: ONNX Runtime's choice)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised
    session: Any = ort.InferenceSession(str(served()), options, providers=["CPUExecutionProvider"])
    (name,), names = ([tensor.name for tensor in of()] for of in (session.get_inputs, session.get_outputs))

    def answer(pixels: Pixels) -> Floats:
        outputs = dict(zip(names, session.run(names, {name: pixels[np.newaxis]}), strict=True))
        probabilities: Floats = SYSTEM.probabilities_from(outputs)[0]
        return probabilities

    return answer


def classifying(photos: Sequence[bytes], threads: int) -> Callable[[int], Floats]:
    """Return a function that classifies a photo by its number, without a server."""
    answer = answering(threads)
    return lambda number: answer(SYSTEM.pixels(photos[number]))


def complaint(body: bytes, expected: Floats) -> str | None:
    """Return the fault of an answer or None: check its label and all its probabilities."""
    right = dict(zip(SYSTEM.labels, expected, strict=True))
    try:
        answer: Any = json.loads(body)
        stated = {entry["label"]: entry["probability"] for entry in (answer, *answer["top"])}
        wrong = [label for label, share in stated.items() if not abs(share - right[label]) <= TOLERANCE]
        if right[answer["label"]] < expected.max() - TOLERANCE:
            wrong.append(answer["label"])
    except (KeyError, TypeError, ValueError) as exc:
        return f"not an answer of a food model ({exc!r}): {body[:200].decode(errors='replace')}"
    return f"{', '.join(wrong)} in {stated}" if wrong else None


# --- contenders


@dataclass(frozen=True)
class PhotoArm:
    """A contender: the command of a peer, with its threads and workers, or the model that our app asks."""

    words: str
    role: Role
    command: tuple[str, ...] = ()
    threads: int = 1
    workers: int = 2
    asks: str = ""


_UVICORN: Final = ("uvicorn", "fastapi_app:app", "--host", "127.0.0.1", "--no-access-log", "--port")
_LITSERVE: Final = ("python", "litserve_server.py")
_BENTOML: Final = ("bentoml", "serve", "bentoml_service:FoodService", "--host", "127.0.0.1", "--port")

# The peers' threads and workers are those that did best of what two cores offer (docs/measuring.md).
OURS: Final = PhotoArm("ours, food_classifier", "ours", asks="food_classifier")
ARMS: Final = {
    "limit": PhotoArm("limit: ONNX Runtime, no server", "no server"),
    "ours": OURS,
    "ours-int8": PhotoArm(f"ours, {MODEL}", "ours", asks=MODEL),
    "fastapi": PhotoArm("FastAPI, in its thread pool", "peers", _UVICORN, 2, 1),
    "litserve": PhotoArm("LitServe, two workers", "peers", _LITSERVE),
    "bentoml": PhotoArm("BentoML, two workers", "peers", _BENTOML),
}


def named(arm: PhotoArm, photos: str) -> str:
    return f"{photos} photos, {arm.words}"


@dataclass(frozen=True)
class PhotoBench:
    """The photos that all contenders get, and the expected answers."""

    sets: Mapping[str, PhotoSet]
    expected: Expected
    levels: Sequence[int]
    options: MeasureOptions
    programs: Path | None  # of the peers' environment

    def contender(self, arm: PhotoArm) -> Contender:
        levels = [_LEVELS[arm.role]] if arm.role in _LEVELS else self.levels
        loads = [(named(arm, photos), LoadSpec(photos, level)) for photos in self.sets for level in levels]
        return Contender(arm.words, loads, partial(self._start, arm))

    @contextmanager
    def _start(self, arm: PhotoArm) -> Iterator[Measure]:
        if arm.role == "no server":
            yield self._without_server
            return
        with tempfile.TemporaryDirectory(prefix="gourmet-peers-") as home:
            (port,) = free_ports(1)
            command, env, cwd = self._command(arm, port, Path(home))
            wire = partial(Http, f"127.0.0.1:{port}", "/predict")
            sample = photo_request((), SYSTEM.sample())
            with started(arm.words, command, env, cwd, lambda: ask_each(wire(), [sample])) as pid:
                groups = _groups(arm, pid)

                def measure_load(_arm: str, load: LoadSpec) -> Point:
                    decoder: Decoder = "peers" if arm.role == "peers" else "ours"
                    right, photos = self.expected[load.model, decoder], self.sets[load.model].photos
                    forms = [photo_request((number,), photo) for number, photo in enumerate(photos)]

                    def check_reply(request: Request, reply: RawReply) -> None:
                        (number,) = request.rows
                        if wrong := complaint(reply.body, right[number]):
                            raise WrongAnswers(f"{arm.words} answers photo {number} wrongly: {wrong}")

                    return measure(load, wire(), forms, check_reply, self.options, groups)

                yield measure_load

    def _without_server(self, arm: str, load: LoadSpec) -> Point:
        photos, right = self.sets[load.model].photos, self.expected[load.model, "ours"]

        def check_reply(request: Request, reply: RawReply) -> None:
            for photo, probabilities in zip(request.body, reply.body, strict=True):
                if not float(np.abs(probabilities - right[photo]).max()) <= TOLERANCE:
                    raise WrongAnswers(f"{arm}: photo {photo} has another answer than before")

        point = no_server(int(load.level), self.options, check_reply, len(photos), classifying, photos, 1)
        return replace(point, load=load)

    def _command(self, arm: PhotoArm, port: int, home: Path) -> tuple[list[str], dict[str, str], Path]:
        """Return the command, its environment variables, and its working directory."""
        if arm.role == "ours":
            return gourmet_up(port), {SYSTEM.model_variable: arm.asks}, home
        assert self.programs
        env = {
            "MODEL": str(served()),
            "LABELS": str(served().parents[1] / "labels.txt"),
            "THREADS": str(arm.threads),
            "WORKERS": str(arm.workers),
            "PORT": str(port),
            "PATH": os.pathsep.join([str(self.programs), os.environ.get("PATH", os.defpath)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "BENTOML_HOME": str(home),
            "BENTOML_DO_NOT_TRACK": "True",
        }
        command = [str(self.programs / arm.command[0]), *arm.command[1:]]
        return command + ([str(port)] if command[-1] == "--port" else []), env, SERVERS


def _groups(arm: PhotoArm, pid: int) -> dict[str, int]:
    """Return the processes to account for separately: our Triton and our web app, or the whole server."""
    if arm.role != "ours":
        return {"server": pid}
    triton, web = sorted(psutil.Process(pid).children(), key=lambda child: "tritonserver" not in child.name())
    return {"server": triton.pid, "web app": web.pid}


# --- the page


def goals(photos: str, rows: Sequence[Row]) -> list[Goal]:
    """Return the goals for a set of photos whose contenders were all measured."""

    def at(level: int) -> tuple[Row | None, list[Row]]:
        by_arm = {row.arm: row for row in rows if row.at_a_time == level}
        rivals = [by_arm.get(named(arm, photos)) for arm in ARMS.values() if arm.role == "peers"]
        return by_arm.get(named(OURS, photos)), [row for row in rivals if row]

    small, (ours, peers), (alone, peers_alone) = photos == "small", at(GOAL_LEVEL), at(1)
    crowds = [(level, row) for level in CROWDS if (row := at(level)[0])]
    p99 = f"{photos} photos: our p99 ÷ the lowest p99 of a peer"
    p50 = f"{photos} photos, one at a time: our p50 ÷ the lowest of a peer"
    times = 1.05 if small else 2.8
    return [
        *ratio_goal(f"{photos} photos, {GOAL_LEVEL} at a time: ours ÷ the best peer", ours, peers, times),
        *(
            goal
            for level, row in crowds
            if ours
            for goal in ratio_goal(
                f"{photos} photos: ours at {level} at a time ÷ at {GOAL_LEVEL}", row, [ours], 0.95
            )
        ),
        *ratio_goal(p99, ours, peers, 1.0, lambda point: point.latency_ms.p99, at_most=True),
        *(
            ratio_goal(p50, alone, peers_alone, 1.25, lambda point: point.latency_ms.p50, at_most=True)
            if small
            else []
        ),
    ]


@click.command()
@click.option("--turns", default=3, show_default=True, type=POSITIVE, help="How often all is measured.")
@click.option("--window", "window_s", default=3.0, show_default=True, type=click.FloatRange(0.2, 60))
@click.option(
    "--concurrency", "levels", type=counts, default="1,8,64,128", help="Photos asked about at a time."
)
@click.option(
    "--photos",
    multiple=True,
    type=click.Choice(list(SETS)),
    default=list(SETS),
    help="small: 400×300; phone: 12 megapixels.  [default: both]",
)
@click.option("--arm", "keys", multiple=True, type=click.Choice(list(ARMS)), help="Measure this one only.")
def peers(
    turns: int,
    window_s: float,
    levels: tuple[int, ...],
    photos: tuple[str, ...],
    keys: tuple[str, ...],
) -> None:
    """Ours, FastAPI, LitServe, BentoML and no server at all, on the same photos, one after another.

    Starts and stops everything itself on free ports; the peers have a virtual environment of their own,
    which `make bench-peers` makes once. All in its default takes about 20 minutes. Every answer is checked
    against the same ONNX file run without a server; a wrong one ends the run.
    """
    chosen = [ARMS[key] for key in keys or ARMS]
    options = window_options(window_s, warm_up_s=0.7)
    sets = {name: SETS[name] for name in photos}
    others = programs("peers") if any(arm.role == "peers" for arm in chosen) else None
    with bar("peers") as tick:
        tick(0.0, "drawing photos, and what each photo's answer must be")
        expected = expected_answers(sets)
        bench = PhotoBench(sets, expected, levels, options, others)
        rows, left_out = measure_in_turns([bench.contender(arm) for arm in chosen], turns, tick)
    about = "; ".join(map(str, sets.values()))
    judged = [goal for name in sets for goal in goals(name, [row for row in rows if row.load.model == name])]
    publish("Photos a second beside other servers", about, rows, judged, left_out)


if __name__ == "__main__":
    main(peers)
