"""Values of options as people write them: paths, times, lists of numbers, sizes, load levels.

A function here is the `type` of an option; the BadParameter it raises says what is wrong, and what is right.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

import click

PATH: Final = click.Path(path_type=Path)
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)
FOUND: Final = click.Path(path_type=Path, exists=True)
FOUND_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
FOUND_FOLDER: Final = click.Path(path_type=Path, exists=True, file_okay=False)
POSITIVE: Final = click.IntRange(1)

_MOST_STEPS: Final = 100
_MICROSECONDS: Final = {None: 1, "us": 1, "µs": 1, "ms": 1000, "s": 1_000_000}


def system_of(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """A system, which may be named by one of its models."""
    from gourmet.client.model_config import as_json
    from gourmet.contracts import SYSTEM_PARAMETER
    from gourmet.repository import DEFAULT, read_config
    from gourmet.runtime.files import own_models
    from gourmet.runtime.instances import parameter
    from gourmet.systems import registry

    if name in registry.names():
        return name
    for models in (DEFAULT, own_models()):
        there = name and (models / name / "config.pbtxt").is_file()
        if there and (system := parameter(as_json(read_config(models / name)), SYSTEM_PARAMETER)):
            return system
    raise click.BadParameter(
        f"{name!r} is neither a system nor a model of one: systems are {', '.join(registry.names())}"
    )


def model_of(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """A model, which may be named by its system: that is the one which answers its page."""
    from gourmet.systems import registry

    return registry.load(name).default_model if name in registry.names() else name


def folder(text: str | Path) -> Path:
    """One of this machine."""
    if "://" in str(text):
        raise click.BadParameter(f"{text} is not a folder of this machine: mount it, and name where")
    return Path(text)


def duration(text: str) -> int:
    """A time in microseconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s)?", text.strip())
    if not found or (found[2] is None and float(found[1])):
        raise click.BadParameter(f"{text!r} is not a time: write it like 100us, 2ms or 0")
    return round(float(found[1]) * _MICROSECONDS[found[2]])


def durations(text: str) -> tuple[int, ...]:
    return tuple(map(duration, text.split(",")))


def goal(text: str) -> int:
    if not (found := duration(text)):
        raise click.BadParameter("no config can reach a goal of 0: write it like 50ms")
    return found


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers: write it like 4,8") from None


def fractions(text: str) -> tuple[float, ...]:
    """Numbers of a picture's channels, such as 0.5, 1/255 or 0.485,0.456,0.406."""
    try:
        parts = [[float(number) for number in part.split("/")] for part in text.split(",")]
        found = tuple(first / math.prod(rest) for first, *rest in parts)
    except (ValueError, ZeroDivisionError):
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise click.BadParameter(f"{text!r} is not a list of numbers: write it like 0.5,0.5,0.5")
    return found


def fraction(text: str) -> float:
    if len(found := fractions(text)) != 1 or found[0] <= 0:
        raise click.BadParameter(f"{text!r} is not one number above 0: write it like 1/255")
    return found[0]


def counts(text: str) -> tuple[int, ...]:
    if min(found := numbers(text)) < 1:
        raise click.BadParameter(f"{text!r} has {min(found)}: each is a whole number of at least 1")
    return found


def versions(text: str) -> tuple[int, ...]:
    """Parse version numbers; an empty list means all versions."""
    return () if text == "all" else counts(text)


def size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)[x×](\d+)", text)
    if not found:
        raise click.BadParameter(f"{text!r} is not a valid size: write it like 400x300")
    return int(found[1]), int(found[2])


def levels(text: str) -> tuple[float, ...]:
    """Levels of load: 8, 1:8, 1:16:5 (start, end, step) or 1,4,16."""
    try:
        given = [float(part) for part in re.split("[:,]", text)]
    except ValueError:
        given = []
    if not given or min(given) <= 0 or (":" in text and ("," in text or len(given) > 3)):
        raise click.BadParameter(f"{text!r} is not a valid range: write it like 8, 1:8, 1:16:5 or 1,4,16")
    if ":" not in text:
        return tuple(given)
    start, end, step = (*given, 1.0)[:3]
    count = int((end - start) / step + 1e-9) + 1
    if end < start or count > _MOST_STEPS:
        raise click.BadParameter(f"{text!r} has {max(0, count)} steps: 1 to {_MOST_STEPS} can be measured")
    return tuple(start + step * at for at in range(count))
