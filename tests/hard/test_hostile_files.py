"""Tens of thousands of hostile files through the decoder: pixels or a reason, each cheap, none the end."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest
from support import hostile

from app.web import gunicorn_conf
from gourmet.pictures.decoders import CPU_S

FILES = int(os.environ.get("FUZZ_FILES", "46000"))
# At the limit a decoder is ended, and what is in front of that adds little.
MAX_CPU_S = CPU_S + 0.5
MAX_MB = 320.0  # measured: 310 for an AVIF that declares 100×100 pixels and has 12,000×12,000, 2026-11-27


def processes() -> list[psutil.Process]:
    """This one, and those that decode for it."""
    return [psutil.Process(), *psutil.Process().children()]


def peak_mb() -> float:
    statuses = (Path(f"/proc/{process.pid}/status").read_text() for process in processes())
    return sum(int(status.split("VmHWM:")[1].split()[0]) for status in statuses) * 1024 / 1e6


def spent_s() -> float:
    """The processor's seconds of these processes and of those that ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes())


def decode_all(files: Iterable[tuple[str, bytes]], note: Callable[[object], None]) -> None:
    """Every file gives pixels or a reason, within the bounds of time and memory."""
    results, most_s, most_mb = Counter[str](), 0.0, 0.0
    for name, data in files:
        if len(processes()) == 1:  # the one that decodes apart was ended
            hostile.decode(hostile.seeds()["tiff"])
        for process in processes():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # forgets the peak
        before_mb, before_s = peak_mb(), spent_s()
        result = hostile.decode(data)
        cpu_s, mb = spent_s() - before_s, peak_mb() - before_mb
        assert result, f"{name} was refused without a word"
        assert cpu_s <= MAX_CPU_S, f"{name} took {cpu_s:.1f} s"
        assert mb <= MAX_MB, f"{name} took {mb:.0f} MB"
        results[result] += 1
        most_s, most_mb = max(most_s, cpu_s), max(most_mb, mb)
    note(f"{results.total()} files: {dict(results)}; at most {most_s:.1f} s and {most_mb:.0f} MB")


@pytest.fixture(autouse=True)
def _as_in_a_worker() -> Iterable[None]:
    gunicorn_conf.post_fork(None, None)  # which chooses how memory is allocated
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_files_made_expensive_to_decode(note: Callable[[object], None]) -> None:
    decode_all(hostile.bombs().items(), note)


@pytest.mark.timeout(3600)
def test_generated_and_mutated_files(note: Callable[[object], None]) -> None:
    decode_all(map(hostile.file, range(FILES)), note)
