"""Coverage-guided fuzzing of what reads strangers' bytes in Python before any decoder (`guided.py`)."""

from __future__ import annotations

import base64
import functools
import importlib.util
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from support import hostile
from support.table import Keep, TableRow

SECONDS = int(os.environ.get("FUZZ_GUIDED_S", "60"))
GUIDED: Final = Path(__file__).with_name("guided.py")
PLANTED: Final = (b"\xff\xd8bug", b"\xff\xd8slow", b"\xff\xd8huge")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="there is no atheris: `pip install -r requirements/fuzz.txt`",
)


@dataclass(frozen=True)
class Ran:
    """What a process of guided.py said, counted and left."""

    status: int
    said: str
    bad: list[bytes]
    passed: int
    refused: int
    most_s: float
    most_mb: float

    def last(self, pattern: str) -> int:
        """The last number that libFuzzer gave for `pattern`, 0 if it came to none."""
        return int((re.findall(pattern + r"\s*(\d+)", self.said) or [0])[-1])

    @property
    def complaint(self) -> str:
        """What broke and by which bytes, or nothing."""
        if self.status == 0 and not self.bad:
            return ""
        inputs = "".join(f"\nbase64: {base64.b64encode(data).decode()}" for data in self.bad)
        begins = self.said.find("\n ===")
        return f"ended with {self.status}:{self.said[begins:][:4000]}{inputs}"


def fuzz(target: str, seeds: Iterable[bytes], folder: Path, seconds: int) -> Ran:
    """Run guided.py for that long, from these inputs on."""
    corpus, bad = folder / "corpus", folder / "bad"
    corpus.mkdir()
    bad.mkdir()
    for number, data in enumerate(seeds):
        (corpus / str(number)).write_bytes(data)
    counts = folder / "counts"
    counts.write_bytes(bytes(4 * 8))
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", f"-artifact_prefix={bad}/"]
    ran = subprocess.run(
        [sys.executable, "-P", GUIDED, target, counts, corpus, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=60 + 4 * seconds,
        check=False,
    )
    passed, refused, most_ns, most_kb = struct.unpack("4Q", counts.read_bytes())
    found = [file.read_bytes() for file in sorted(bad.iterdir())]
    return Ran(ran.returncode, ran.stdout, found, passed, refused, most_ns / 1e9, most_kb / 1e3)


@functools.cache
def pictures() -> list[bytes]:
    return [*hostile.seeds().values(), *(hostile.file(number)[1] for number in range(200))]


def with_ends_to_repeat() -> list[bytes]:
    return [data + bytes([length]) for data in hostile.seeds().values() for length in (0, 3, 13, 255)]


def forms() -> list[bytes]:
    bodies = (hostile.request(number)[1].partition(b"\r\n\r\n")[2] for number in range(600))
    return [body for body in bodies if body.startswith(b"--")]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("target", "seeds", "what"),
    [
        ("headers", pictures, "the limits on scans and colour profiles"),
        ("opened", pictures, "what is asked of a picture's header"),
        ("repeated", with_ends_to_repeat, "both, in files of 10 MB whose end is repeated"),
        ("form", forms, "the reader of forms"),
    ],
)
def test_coverage_guided_inputs(
    target: str,
    seeds: Callable[[], list[bytes]],
    what: str,
    table: Keep,
    tmp_path: Path,
) -> None:
    ran = fuzz(target, seeds(), tmp_path, SECONDS)
    units = ran.last("stat::number_of_executed_units:")
    table(
        TableRow(
            tried=f"coverage-guided inputs to {target}: {what}",
            requests=units,
            answered=ran.passed,
            refused={"a reason": ran.refused},
            wrong={ran.complaint: len(ran.bad)} if ran.complaint else {},
            seen="let on to the decoder, or refused with a reason",
            survived=not ran.complaint,
            figures={
                "edges covered": ran.last("cov:"),
                "inputs that reached something new": ran.last("stat::new_units_added:"),
                "processor seconds at most": round(ran.most_s, 3),
                "megabytes at most, with all that the search keeps": round(ran.most_mb, 1),
            },
        )
    )
    assert units > len(seeds()), ran.said


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_mistake_is_found(planted: bytes, tmp_path: Path) -> None:
    """Nobody tells where it is: the beginning that is given is short of it by some bytes."""
    ran = fuzz("planted", [planted[:3]], tmp_path, 60)
    assert ran.status != 0
    assert ran.bad, ran.complaint
    assert ran.bad[0] in PLANTED, ran.complaint
