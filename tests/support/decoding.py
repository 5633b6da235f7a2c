"""Decodes hostile files in a process of its own and says what each cost: `python decoding.py FIRST LAST`.

One line of JSON for each file that was dear, or ended in anything but pixels or
PictureError; the last line has the counts. `bombs` in the place of the numbers: those, each with a line.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from support import hostile

from app.admission import gunicorn_conf
from gourmet.pictures.decode import PictureError, from_base64
from gourmet.systems.food11 import contract

SHAPE = (contract.SYSTEM.input_size, contract.SYSTEM.input_size, 3)


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def peak_mb() -> float:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def decode(data: bytes) -> str:
    """What becomes of a file on the way that uploads take; raises what must not be raised."""
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
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, began, worked = peak_mb(), time.perf_counter(), time.process_time()
    try:
        result = decode(data)
    except BaseException as exc:
        result = f"BROKE: {exc!r}"[:300]
    return {
        "result": result,
        "cpu_s": round(time.process_time() - worked, 3),
        "wall_s": round(time.perf_counter() - began, 3),
        "peak_mb": round(peak_mb() - before, 1),
    }


def main(first: int, last: int) -> None:
    results: Counter[str] = Counter()
    dearest = {"cpu_s": 0.0, "wall_s": 0.0, "peak_mb": 0.0}
    for number in range(first, last):
        name, data = hostile.file(number)
        found = measured(data)
        results[found["result"]] += 1
        dearest = {key: max(value, found[key]) for key, value in dearest.items()}
        if found["result"].startswith("BROKE") or found["cpu_s"] > 2 or found["peak_mb"] > 300:
            say({"number": number, "name": name, "bytes": len(data), **found})
    say({"results": results, **dearest})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    gunicorn_conf.post_fork(None, None)
    if sys.argv[1] == "bombs":
        for name, data in hostile.bombs().items():
            say({"name": name, "bytes": len(data), **measured(data)})
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
