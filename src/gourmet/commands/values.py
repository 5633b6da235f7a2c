"""What people write for an option of a verb: times, lists of numbers, shapes, sizes, levels of load."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

_MOST_STEPS: Final = 100
_MICROSECONDS: Final = {None: 1, "us": 1, "µs": 1, "ms": 1000, "s": 1_000_000}


class Written(click.ParamType[Any]):
    """A type of option that `read` makes a value of; its ValueError says what is wrong, and what is right."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def _duration(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s)?", text.strip())
    if not found or (found[2] is None and float(found[1])):
        raise ValueError(f"{text!r} is not a time: write it like 100us, 2ms or 0")
    return round(float(found[1]) * _MICROSECONDS[found[2]])


def _goal(text: str) -> int:
    if not (found := _duration(text)):
        raise ValueError("a goal of 0 is kept by nothing: write it like 50ms")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of whole numbers: write it like 4,8") from None


def _counts(text: str) -> tuple[int, ...]:
    if min(found := _numbers(text)) < 1:
        raise ValueError(f"{text!r} has {min(found)}: each is a whole number of at least 1")
    return found


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    found = re.fullmatch(r"(.+):(-?\d+(?:,-?\d+)*)", text)
    if not found:
        raise ValueError(f"{text!r} is not a shape: write it like input:3,224,224")
    return found[1], _numbers(found[2])


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)[x×](\d+)", text)
    if not found:
        raise ValueError(f"{text!r} is not a valid size: write it like 400x300")
    return int(found[1]), int(found[2])


def _range(text: str) -> tuple[float, ...]:
    """Levels of load: 8, 1:8, 1:16:5 (start, end, step) or 1,4,16."""
    try:
        numbers = [float(part) for part in re.split("[:,]", text)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0 or (":" in text and ("," in text or len(numbers) > 3)):
        raise ValueError(f"{text!r} is not a valid range: write it like 8, 1:8, 1:16:5 or 1,4,16")
    if ":" not in text:
        return tuple(numbers)
    start, end, step = (*numbers, 1.0)[:3]
    count = int((end - start) / step + 1e-9) + 1
    if end < start or count > _MOST_STEPS:
        raise ValueError(f"{text!r} has {max(0, count)} steps: 1 to {_MOST_STEPS} can be measured")
    return tuple(start + step * at for at in range(count))


DURATION: Final = Written("TIME", _duration)  # in microseconds, as are all times here
DURATIONS: Final = Written("TIME,TIME,…", lambda text: tuple(map(_duration, text.split(","))))
GOAL: Final = Written("TIME", _goal)
NUMBERS: Final = Written("N,N,…", _numbers)
COUNTS: Final = Written("N,N,…", _counts)
SHAPE: Final = Written("NAME:N,N,…", _shape)
SIZE: Final = Written("WxH", _size)
RANGE: Final = Written("N|N:N[:N]|N,N", _range)
