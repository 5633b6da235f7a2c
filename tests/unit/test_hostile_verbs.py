"""Every verb that reads somebody's file is fed with hostile ones: each ends in a sentence, and does nothing.

support/fed_verb.py runs the verbs, and says what each wrote outside its own folder, started and connected to.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from support import fed_cases, hostile_inputs
from support.fed_cases import Case, Given
from support.fed_verb import MEGABYTES

from gourmet.cli import VERBS
from gourmet.commands import caption
from gourmet.errors import GourmetError
from gourmet.measure import inputs
from gourmet.repository import read_config
from gourmet.result_store import ResultStore
from gourmet.tasks.classification.deployer import check as deployer_check
from gourmet.tasks.generation import check as text_check

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

ELSEWHERE: Final = {
    "lab": "opens notebooks/ of the checkout and no other folder",
    "perf-analyzer": "hands its arguments to NVIDIA's program",
    # These ask a server before they read: what they read with is fed below, without one.
    **dict.fromkeys(("caption", "check", "client", "config", "tune"), "READERS"),
}


@contextlib.contextmanager
def feeding(base: Path) -> Iterator[Callable[[Case, int], dict[str, Any]]]:
    """A process that runs one case after another, with a home and a temporary folder of its own."""
    for name in ("victim", "home", "tmp"):
        (base / name).mkdir(exist_ok=True)
    own = {"HOME": "home", "TMPDIR": "tmp", "XDG_RUNTIME_DIR": "tmp", "XDG_CACHE_HOME": "home"}
    environment = {**os.environ, **{name: str(base / folder) for name, folder in own.items()}}
    # torch sets it in the process that imports it, such as this one.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(base / "tmp" / "torchinductor")
    environment |= {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
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


def feed_all(base: Path, cases: Iterable[Case]) -> Counter[str]:
    """How many files each verb was fed; fails where any of them did anything."""
    wrong, fed = {}, Counter[str]()
    with feeding(base) as feed:
        for number, case in enumerate(cases):
            fed[case.verb] += 1
            if found := list(faults(case, feed(case, number))):
                wrong[f"{case.verb}: {case.name}"] = found
    assert wrong == {}
    assert not list((base / "victim").iterdir())
    return fed


def test_every_verb_that_reads_files_of_somebody_is_fed_forty_hostile_ones(tmp_path: Path) -> None:
    given = Given(tmp_path)
    fed = feed_all(tmp_path, (case for make in fed_cases.QUICK for case in make(given)))
    assert set(fed) == VERBS.keys() - ELSEWHERE.keys() - {"roofline"}
    few = {verb: count for verb, count in fed.items() if count < 40}
    assert few.keys() <= {"translate"}, "which reads lines of text and nothing else"


def test_verbs_that_read_weights_and_networks(tmp_path: Path) -> None:
    """Of weights, those that no other process is started for; all of them are the slow test's."""
    given = Given(tmp_path)
    fed = feed_all(
        tmp_path,
        (
            *fed_cases.of_weights(given, all_of_them=False),
            *fed_cases.of_networks(given, all_of_them=False),
        ),
    )
    assert set(fed) == {"new", "deploy", "deployer", "evaluate", "train", "roofline"}


@pytest.mark.slow
def test_verbs_that_read_weights_and_networks_of_every_kind(tmp_path: Path) -> None:
    given = Given(tmp_path)
    make = (fed_cases.of_weights, fed_cases.of_networks)
    fed = feed_all(tmp_path, (case for each in make for case in each(given, all_of_them=True)))
    assert fed["train"] > 40


def test_the_reporter_hears_what_a_hostile_file_would_do(tmp_path: Path) -> None:
    """A file that is opened as no file of somebody's may be, so that the tests above would fail."""
    from support.hostile_files import torchscript_that_writes

    victim = tmp_path / "victim" / "written"
    victim.parent.mkdir()
    script = torchscript_that_writes(tmp_path / "w.pt", victim)
    victim.unlink(missing_ok=True)
    code = "import torch, subprocess; subprocess.run(['true'])\nopen('/dev/full', 'w').close()\n"
    code += f"torch.jit.load({str(script)!r})"
    system = tmp_path / "systems" / "owned"
    system.mkdir(parents=True)
    (system / "contract.py").write_text(code)
    case = Case(
        "new",
        "",
        ["new", "a1", "--labels", "a,b", "--like", "owned"],
        more={"env": {"GOURMET_SYSTEMS": str(system.parent)}},
    )
    with feeding(tmp_path) as feed:
        came = feed(case, 0)
    assert any("starts ['true']" in each for each in came["found"])
    assert any("open /dev/full" in each for each in came["found"])
    assert any(str(victim) in each for each in came["changed"])


def options(**given: Any) -> Any:
    return SimpleNamespace(**given)


def read_photo(path: Path) -> None:
    try:
        caption._read(path)
    except ValueError as exc:  # said of this photo, and the others are asked about
        raise GourmetError(str(exc)) from exc


OF_TEXTS: Any = SimpleNamespace(generator=SimpleNamespace(example_kind="text"))
INFO: Any = SimpleNamespace(name="m", inputs=[SimpleNamespace(shape=(1, 3, 8, 8))], parameters={})
READERS: Final[dict[str, tuple[str, Callable[[], dict[str, bytes]], Callable[[Path], object]]]] = {
    "caption PHOTO": ("photo.jpg", hostile_inputs.texts, read_photo),
    "check --resume, bench scenario --resume": (
        "results.jsonl",
        lambda: {name: content + b"\n" for name, content in hostile_inputs.texts().items() if content},
        lambda path: ResultStore(path.parent, {"model": "m"}, dict),
    ),
    "check --data": (
        "texts.txt",
        lambda: {"not UTF-8": b"\xff\xfe", "noise": bytes(range(256))},
        lambda path: text_check._questions(options(data=path, limit=1, part=None), OF_TEXTS),
    ),
    "tune --data, bench run --data": (
        "rows.npz",
        lambda: hostile_inputs.arrays() | hostile_inputs.texts(),
        lambda path: inputs._arrays(path, 4),
    ),
    "client --inference_data": (
        "rows.bin",
        lambda: {"half a row": bytes(100)},
        lambda path: deployer_check.examples_of(INFO, options(data=path, half=False), None),
    ),
    "config --write, config --reset": (
        "config.pbtxt",
        lambda: hostile_inputs.configs() | {"noise": bytes(range(256)), "not UTF-8": b"\xff"},
        lambda path: read_config(path.parent),
    ),
}


@pytest.mark.parametrize("verb", READERS)
def test_what_is_read_beside_a_server_is_refused_in_a_sentence(verb: str, tmp_path: Path) -> None:
    name, contents, read = READERS[verb]
    taken = []
    for what, path in Given(tmp_path).files(contents(), name):
        if path.is_dir() or not (path.exists() or path.is_symlink()):
            continue
        try:
            read(path)
            taken.append(what)
        except GourmetError:
            continue
    assert taken == []


def test_results_are_not_kept_through_a_link_to_another_file(tmp_path: Path) -> None:
    """Without its last line's end, the file that it leads to would lose that line."""
    victim = tmp_path / "keys"
    victim.write_text("a key without an end of its line")
    (tmp_path / "results.jsonl").symlink_to(victim)
    with pytest.raises(GourmetError, match="it is a link"):
        ResultStore(tmp_path, {"model": "m"}, dict)
    assert victim.read_text() == "a key without an end of its line"
