"""Decodes hostile files in a process of its own and says what each cost: `python decoding.py FIRST LAST`.

One line of JSON for each file that was expensive, or ended in anything but pixels or
PictureError; the last line has the counts. With `bombs` instead of the numbers, one line for each file that
is made expensive on purpose.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from support import hostile

from app.admission import gunicorn_conf
from gourmet.pictures.decode import PictureError, from_base64
from gourmet.pictures.decoders import CPU_S
from gourmet.systems.food11 import contract

SHAPE = (contract.SYSTEM.input_size, contract.SYSTEM.input_size, 3)


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def decoders() -> list[psutil.Process]:
    """The processes that decode for this one."""
    return psutil.Process().children()


def peak_mb() -> float:
    """Return the peak memory of this process and its decoders."""
    pids = ["self", *(process.pid for process in decoders())]
    peaks = (Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0] for pid in pids)
    return sum(map(int, peaks)) * 1024 / 1e6


def forget_peaks() -> None:
    for pid in ("self", *(process.pid for process in decoders())):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def spent_s() -> float:
    """The processor's seconds of this process, and of those that decode or decoded for it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used_now = [process.cpu_times() for process in decoders()]
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + sum(
        usage.user + usage.system for usage in used_now
    )


def decode(data: bytes) -> str:
    """Decode a file as uploads are decoded and return the result; unexpected errors propagate."""
    try:
        picture = from_base64(data)
        contract.SYSTEM.identify(picture)
        image = contract.SYSTEM.pixels(picture)
    except PictureError as exc:
        return exc.code if str(exc) else "BROKE: an error without a word"
    assert image.shape == SHAPE, image.shape
    assert image.dtype == "uint8"
    return "pixels"


def measured(data: bytes) -> dict[str, Any]:
    gc.collect(0)
    forget_peaks()
    before, began, worked = peak_mb(), time.perf_counter(), spent_s()
    try:
        result = decode(data)
    except BaseException as exc:
        result = f"BROKE: {exc!r}"[:300]
    return {
        "result": result,
        "cpu_s": round(spent_s() - worked, 3),
        "wall_s": round(time.perf_counter() - began, 3),
        "peak_mb": round(peak_mb() - before, 1),
    }


def main(first: int, last: int) -> None:
    results: Counter[str] = Counter()
    most_expensive = {"cpu_s": 0.0, "wall_s": 0.0, "peak_mb": 0.0}
    for number in range(first, last):
        name, data = hostile.file(number)
        result = measured(data)
        results[result["result"]] += 1
        most_expensive = {key: max(value, result[key]) for key, value in most_expensive.items()}
        if result["result"].startswith("BROKE") or result["cpu_s"] > CPU_S or result["peak_mb"] > 300:
            say({"number": number, "name": name, "bytes": len(data), **result})
    say({"results": results, **most_expensive})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    gunicorn_conf.post_fork(None, None)
    decode(hostile.seeds()["tiff"])  # the process that decodes apart is there from here on
    if sys.argv[1] == "bombs":
        for name, data in hostile.bombs().items():
            say({"name": name, "bytes": len(data), **measured(data)})
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
