"""Verbs are fed with somebody's files: what is wrong with what came of it, and which were fed how often.

fed_verb.py, in a process of its own, runs the verbs and says what each wrote, started and connected to.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click
from support.fed_cases import Case, Given
from support.fed_verb import MEGABYTES

from gourmet.cli import VERBS, main
from gourmet.commands.values import folder

# Verbs that ask a server before they read, or read what a server says of: served/test_hostile_verbs.py.
ASKING: Final = (
    *("caption", "check", "classify", "config", "translate", "tune"),
    *("bench run", "bench scenario", "deployer client"),
)
ELSEWHERE: Final = {
    "lab": "opens notebooks/ of the checkout and no other folder",
    "perf-analyzer": "hands its arguments to NVIDIA's program",
}
# Options that name where something is to be written, which is in nobody's file's hands.
WRITTEN: Final = ("--out", "--picture", "--save", "--save-dir", "--to", "--write")
# Options for a text or for a file.
TEXTS_OR_FILES: Final = ("new --labels", "deployer --labels", "deploy --checkpoint", "roofline model")


@contextlib.contextmanager
def feeding(base: Path) -> Iterator[Callable[[Case, int], dict[str, Any]]]:
    """A process that runs one case after another, with a home and a temporary folder of its own."""
    for name in ("victim", "home", "tmp"):
        (base / name).mkdir(parents=True, exist_ok=True)
    own = {"HOME": "home", "TMPDIR": "tmp", "XDG_RUNTIME_DIR": "tmp", "XDG_CACHE_HOME": "home"}
    environment = {**os.environ, **{name: str(base / folder) for name, folder in own.items()}}
    # torch sets it in the process that imports it, such as this one.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(base / "tmp" / "torchinductor")
    environment |= {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["OMP_NUM_THREADS"] = "1"  # of more, a process that is forked would have the first alone
    command = [sys.executable, "-P", "-m", "support.fed_verb", str(base)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout

        def feed(case: Case, number: int) -> dict[str, Any]:
            asked = {"argv": case.argv, "own": str(base / "own" / str(number)), **case.more}
            process.stdin.write(json.dumps(asked) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            answer = process.stdout.readline()  # type: ignore[union-attr]
            assert answer, f"the process of the verbs did not outlive {case.verb}: {case.name}"
            return dict(json.loads(answer))

        yield feed
        process.stdin.close()


def faults(case: Case, came: dict[str, Any]) -> Iterator[str]:
    """What is wrong with what came of a case."""
    if came["error"]:
        yield f"no sentence: {came['error']} at {came['at']}"
    if case.refused and came["status"] == 0:
        yield f"taken: {came['said'][-300:]}"
    if came["status"] and not came["error"] and len(came["said"].strip()) < 20:
        yield "it says nothing"
    if "\x1b" in came["said"] or "\x07" in came["said"]:
        yield "a file speaks to the terminal"
    if came["megabytes"] > MEGABYTES:
        yield f"{came['megabytes']} MB"
    for what in ("found", "changed", "left"):
        if came[what]:
            yield f"{what}: {came[what][:3]}"


def feed_all(base: Path, makes: Iterable[Callable[[Given], Iterable[Case]]]) -> Counter[str]:
    """How many files each verb was fed, and each `verb --option`; fails where any of them did anything.

    Two processes, each with folders of its own, are fed what one of the `makes` makes after another.
    """
    wrong: dict[str, list[str]] = {}
    rest = iter(makes)

    def feed_some(place: Path) -> Counter[str]:
        fed, given = Counter[str](), Given(place)
        cases = (case for make in rest for case in make(given))
        with feeding(place) as feed:
            for number, case in enumerate(cases):
                fed.update(_fed(case.argv))
                if found := list(faults(case, feed(case, number))):
                    wrong[f"{case.verb}: {case.name}"] = found
        assert not list(given.victim.iterdir())
        return fed

    with ThreadPoolExecutor(2) as pool:
        fed = sum(pool.map(feed_some, (base / "one", base / "other")), Counter[str]())
    assert not wrong, "\n".join(f"{case}: {found}" for case, found in wrong.items())
    return fed


def _fed(argv: list[str]) -> set[str]:
    verb, command = _command(argv)
    given = [each for each in command.params if _is_argument(each) or set(each.opts) & set(argv)]
    return {argv[0], *(f"{verb} {_name(each)}" for each in given)}


def what_reads_files() -> set[str]:
    """Each verb with each option or argument by which it is given somebody's file or folder."""
    return {
        place
        for verb in _verbs()
        for each in _command(verb.split())[1].params
        for place in [f"{verb} {_name(each)}"]
        if (_takes_a_path(each) or place in TEXTS_OR_FILES) and _name(each) not in WRITTEN
    }


def asks_first(place: str) -> bool:
    return place.startswith(ASKING)


def _verbs() -> Iterator[str]:
    for verb in VERBS:
        command = _command([verb])[1]
        yield from [f"{verb} {name}" for name in command.commands] if _is_group(command) else [verb]


def _command(words: list[str]) -> tuple[str, Any]:
    """The verb that a command line begins with, such as `bench run`."""
    command: Any = main
    for number, word in enumerate(words):
        if not _is_group(command):
            return " ".join(words[:number]), command
        command = command.get_command(click.Context(command), word)
    return " ".join(words), command


def _is_group(command: click.Command) -> bool:
    return isinstance(command, click.Group)


def _is_argument(given: click.Parameter) -> bool:
    return isinstance(given, click.Argument)


def _name(given: click.Parameter) -> str:
    return str(given.name) if _is_argument(given) else given.opts[0]


def _takes_a_path(given: click.Parameter) -> bool:
    kind = given.type
    return isinstance(kind, click.Path | click.File) or getattr(kind, "func", None) is folder
