"""Values of options as people write them: paths, times, lists of numbers, sizes, load levels.

A function here is the `type` of an option; the BadParameter it raises says what is wrong, and what is right.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

import click

from gourmet.errors import UsageError, printable
from gourmet.served.reading import error_summary, read_text

PATH: Final = click.Path(path_type=Path)
FILE: Final = click.Path(path_type=Path, dir_okay=False)
FOLDER: Final = click.Path(path_type=Path, file_okay=False)
FOUND: Final = click.Path(path_type=Path, exists=True)
FOUND_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
FOUND_FOLDER: Final = click.Path(path_type=Path, exists=True, file_okay=False)
POSITIVE: Final = click.IntRange(1)

_MAX_STEPS: Final = 100
_MICROSECONDS: Final = {None: 1, "us": 1, "µs": 1, "ms": 1000, "s": 1_000_000}


def system_of(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """Return the system of this name, or of the model of this name."""
    from gourmet.contracts import SYSTEM_PARAMETER
    from gourmet.repository.models import read_config, repository_of
    from gourmet.served.instances import parameter
    from gourmet.systems import registry
    from gourmet.triton_client.model_config import as_json

    if name in registry.names():
        return name
    model = repository_of(name) / name
    is_model = name and (model / "config.pbtxt").is_file()
    if is_model and (system := parameter(as_json(read_config(model)), SYSTEM_PARAMETER)):
        return system
    raise click.BadParameter(
        f"{name!r} is neither a system nor a model of one: systems are {', '.join(registry.names())}"
    )


def model_of(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    """Return the model of this name, or the model of this system's page."""
    from gourmet.systems import registry

    return registry.load(name).default_model if name in registry.names() else name


def folder(text: str | Path) -> Path:
    """Return the path; refuse the URL of a bucket."""
    if "://" in str(text):
        raise click.BadParameter(f"{text} is not a folder of this machine: mount it, and name where")
    return Path(text)


def duration(text: str) -> int:
    """Parse a time; return microseconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s)?", text.strip())
    if not match or (match[2] is None and float(match[1])):
        raise click.BadParameter(f"{text!r} is not a time: write it like 100us, 2ms or 0")
    return round(float(match[1]) * _MICROSECONDS[match[2]])


def durations(text: str) -> tuple[int, ...]:
    return tuple(map(duration, text.split(",")))


def goal(text: str) -> int:
    if not (microseconds := duration(text)):
        raise click.BadParameter("no config can reach a goal of 0: write it like 50ms")
    return microseconds


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers: write it like 4,8") from None


def fractions(text: str) -> tuple[float, ...]:
    """Parse numbers for a picture's channels, such as 0.5, 1/255 or 0.485,0.456,0.406."""
    try:
        parts = [[float(number) for number in part.split("/")] for part in text.split(",")]
        parsed = tuple(first / math.prod(rest) for first, *rest in parts)
    except (ValueError, ZeroDivisionError):
        parsed = (math.nan,)
    if not all(map(math.isfinite, parsed)):
        raise click.BadParameter(f"{text!r} is not a list of numbers: write it like 0.5,0.5,0.5")
    return parsed


def fraction(text: str) -> float:
    if len(parsed := fractions(text)) != 1 or parsed[0] <= 0:
        raise click.BadParameter(f"{text!r} is not one number above 0: write it like 1/255")
    return parsed[0]


def counts(text: str) -> tuple[int, ...]:
    if min(parsed := numbers(text)) < 1:
        raise click.BadParameter(f"{text!r} has {min(parsed)}: each number must be at least 1")
    return parsed


def versions(text: str) -> tuple[int, ...]:
    """Parse version numbers; an empty list means all versions."""
    return () if text == "all" else counts(text)


def size(text: str) -> tuple[int, int]:
    if not (match := re.fullmatch(r"(\d+)[x×](\d+)", text)):
        raise click.BadParameter(f"{text!r} is not a valid size: write it like 400x300")
    return int(match[1]), int(match[2])


def levels(text: str) -> tuple[float, ...]:
    """Parse levels of load: 8, 1:8, 1:16:5 (start, end, step) or 1,4,16."""
    try:
        parts = [float(part) for part in re.split("[:,]", text)]
    except ValueError:
        parts = []
    if not parts or min(parts) <= 0 or (":" in text and ("," in text or len(parts) > 3)):
        raise click.BadParameter(f"{text!r} is not a valid range: write it like 8, 1:8, 1:16:5 or 1,4,16")
    if ":" not in text:
        return tuple(parts)
    start, end, step = (*parts, 1.0)[:3]
    count = int((end - start) / step + 1e-9) + 1
    if end < start or count > _MAX_STEPS:
        raise click.BadParameter(f"{text!r} has {max(0, count)} steps: 1 to {_MAX_STEPS} can be measured")
    return tuple(start + step * number for number in range(count))


def labels_of(text: str) -> tuple[str, ...]:
    """Read `--labels`: a,b,c, or a file with one label a line."""
    path = Path(text)
    if "," not in text and not path.is_file():
        raise UsageError(f"--labels {text!r} is neither a file nor a list such as rose,tulip")
    try:
        listed = "\n".join(text.split(",")) if "," in text else read_text(path)
    except (OSError, ValueError) as exc:
        raise UsageError(
            f"--labels {text} is not a text file, with a label a line: {error_summary(exc)}"
        ) from exc
    # A label is a line, as in the labels.txt that Triton reads.
    labels = tuple(label.strip() for label in listed.splitlines() if label.strip())
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise UsageError(
            f"--labels names {', '.join(twice)} twice: each label once, in the order of the outputs"
        )
    if bad := [label for label in labels if printable(label) != label]:
        raise UsageError(f"--labels has {bad[0]!r}: a label has no control characters in it")
    if len(labels) < 2:
        raise UsageError(f"--labels names {len(labels)} label: a classifier has at least two")
    return labels
