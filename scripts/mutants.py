"""Put realistic faults into a copy of the checkout, one at a time, and see whether its fast tests notice.

    .venv/bin/python -P scripts/mutants.py              # all, some ten minutes on two idle cores
    .venv/bin/python -P scripts/mutants.py fair_queue   # those of files whose path contains a word

A fault that no test notices is printed at the end: it lacks a test, or its code is superfluous. The copy has
the checkout's packages as hard links. tests/unit/test_mutants.py checks that each fault still fits the code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import click

ROOT: Final = Path(__file__).parents[1]
LIST: Final = Path(__file__).with_suffix(".txt")
_GOAL: Final = 0.9
# Forks itself for each line of arguments, and answers with pytest's status and output.
_RUNS: Final = """
import json, os, sys, tempfile
import flask, google.protobuf, gunicorn, numpy, onnx, onnxruntime, PIL.Image, pydantic, pytest, scipy.special
import torch, tritonclient.grpc
for line in sys.stdin:
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        if not (child := os.fork()):
            os.setsid()
            for number in (1, 2):
                os.dup2(output.fileno(), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            status = pytest.main(json.loads(line))
            sys.stdout.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        print(status, json.dumps(output.read()[-3000:]), flush=True)
"""


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file`, `old` becomes `new`; `tests` are the files that should notice."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.old!r} → {self.new!r}"

    def applied_to(self, root: Path) -> str:
        """Return the text of the file with the fault; raise ValueError unless `old` is there exactly once."""
        text = (root / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {self.old!r} {count} times: change scripts/mutants.txt")
        return text.replace(self.old, self.new)


def mutants() -> Iterator[Mutant]:
    """Read the list: `# FILE: TESTS` begins a file, `- old` and `+ new` are a fault; ⏎ is a line's end.

    Tests are named without `tests/unit/test_`, others with their folder: `served/client`.
    """
    file, tests, old = "", tuple[str, ...](), ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        kind, _, text = line.partition(" ")
        text = text.replace("⏎", "\n")
        if kind == "#":
            file, _, names = text.partition(": ")
            paths = [name.rpartition("/") for name in names.split()]
            tests = tuple(f"tests/{folder or 'unit'}/test_{name}.py" for folder, _, name in paths)
        elif kind == "-":
            old = text
        elif kind == "+":
            yield Mutant(file, old, text, tests)


def copied(into: Path) -> Path:
    """Copy the files that git knows or would add, and the virtual environment, which leads to the copy."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, files.decode().split("\0")):
        if os.path.lexists(ROOT / name):
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name, follow_symlinks=False)
    subprocess.run(["cp", "-al", ROOT / ".venv", into / ".venv"], check=True)
    (site,) = (into / ".venv" / "lib").glob("python3*/site-packages")
    for path in (*site.glob("__editable__*"), *(into / ".venv" / "bin").iterdir()):
        content = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
        if str(ROOT).encode() in content and b"\0" not in content:
            mode = path.stat().st_mode
            path.unlink()  # a link to the file of the checkout
            path.write_bytes(content.replace(str(ROOT).encode(), str(into).encode()))
            path.chmod(mode)
    return into


class Tester:
    """A copy, and a process with the packages' modules, of which each run of its tests is a fork."""

    def __init__(self, root: Path) -> None:
        self._root, self._moment, self.output = root, 1e9, ""
        self._process = subprocess.Popen(
            [root / ".venv/bin/python", "-P", "-c", _RUNS],
            cwd=root,
            env={**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def passes(self, tests: Sequence[str]) -> bool:
        """Return whether these files of tests pass."""
        assert self._process.stdin
        assert self._process.stdout
        options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", "60", "--timeout-method", "thread"]
        arguments = [*options, "-m", "not slow and not nightly", *tests]
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        status, _, self.output = self._process.stdout.readline().partition(" ")
        if status in ("3", "4", "5"):  # of pytest itself, or no test
            raise click.ClickException(f"pytest ended with status {status}: {json.loads(self.output)}")
        return status == "0"

    def notices(self, mutant: Mutant) -> bool:
        """Return whether the tests fail with the fault."""
        path = self._root / mutant.file
        original = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied_to(self._root))
        try:
            return not self.passes(mutant.tests)
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        self._moment += 2  # Python compiles a module again if its time, in seconds, differs
        os.utime(path, (self._moment, self._moment))

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@click.command()
@click.argument("words", nargs=-1)
@click.option("--jobs", default=2, show_default=True, help="Copies that are tested at a time.")
def main(words: tuple[str, ...], jobs: int) -> None:
    """Put each fault of the list into a copy, and see whether the tests notice it."""
    chosen = [one for one in mutants() if not words or any(re.search(word, str(one)) for word in words)]
    for mutant in chosen:
        mutant.applied_to(ROOT)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=ROOT.parent, prefix=f"{ROOT.name}-mutants-") as folder:
        testers, usable = SimpleQueue[Tester](), dict[tuple[str, ...], bool]()
        for number in range(jobs):
            testers.put(Tester(copied(Path(folder, str(number), ROOT.name))))

        def outcome(mutant: Mutant) -> str:
            tester, started = testers.get(), time.monotonic()
            try:
                if mutant.tests not in usable:
                    usable[mutant.tests] = tester.passes(mutant.tests)
                if not usable[mutant.tests]:
                    outcome = "UNUSABLE"  # its tests fail without a fault
                else:
                    outcome = "killed" if tester.notices(mutant) else "SURVIVED"
            finally:
                testers.put(tester)
            click.echo(f"{outcome:8} {time.monotonic() - started:5.1f} s  {mutant}")
            return outcome

        with ThreadPoolExecutor(jobs) as threads:
            outcomes = list(threads.map(outcome, chosen))
        for _ in range(jobs):
            testers.get().close()
    killed, minutes = outcomes.count("killed"), (time.monotonic() - began) / 60
    click.echo(f"{killed} of {len(outcomes)} killed in {minutes:.1f} min")
    for mutant, what in zip(chosen, outcomes, strict=True):
        if what != "killed":
            click.echo(f"{what}: {mutant}")
    sys.exit(killed < _GOAL * len(outcomes))


if __name__ == "__main__":
    main()
