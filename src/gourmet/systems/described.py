"""Systems that are only data: a folder with a system.toml describes a classifier of pictures.

`gourmet new` writes such a folder, and no code. What else the verbs ask of it is the same for all such
systems: `gourmet.systems.described_pictures`. One may also be `like` a system that is code and has
described_parts.py, as another pair of languages is: that says what it is then.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from gourmet.errors import GourmetError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.served.reading import error_summary, read_text

FILE: Final = "system.toml"
SAMPLE: Final = "sample.jpg"
MODEL_CARD: Final = "MODEL_CARD.md"
# Files of a system. The last one marks the folder as a system.
FILES: Final = (MODEL_CARD, SAMPLE, FILE)
NAME: Final = re.compile(r"[a-z][a-z0-9_]{1,31}")
# Filters of Pillow, by its names.
_CUT: Final = ("squash", "edge", "resample")
RESAMPLE: Final = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
Read = TypeVar("Read")
_HEADING: Final = "# A system that is data; docs/models.md says what each line means.\n"


def classifier(name: str, described: Mapping[str, Any], folder: Path) -> PictureClassifier:
    """Make the system `name` from what is `described`; raise KeyError, TypeError or ValueError."""
    pictures, outputs = described["pictures"], described["outputs"]
    mean, std = (_numbers(pictures[key]) for key in ("mean", "std"))
    if described["task"] != "classification":
        raise ValueError(f'its task is {described["task"]!r}, and only "classification" can be described')
    if not 0 < int(pictures["size"]) <= 4096 or not all(std):
        raise ValueError("its pictures have an impossible size, or a standard deviation of 0")
    if len(mean) != len(std) or len(mean) not in (1, 3):
        raise ValueError("its mean and std have not three numbers each, or one each for grey pictures")
    return PictureClassifier(
        **fields_of_name(name, folder),
        title=_text(described["title"]),
        labels=_texts(described["labels"]),
        datatypes=(_one_of(pictures.get("datatype", "FP32"), "FP32", "FP16", "UINT8"),),
        layout=_one_of(pictures.get("layout", "NCHW"), "NCHW", "NHWC"),
        input_size=int(pictures["size"]),
        mean=mean,
        std=std,
        squash=pictures.get("squash", False) is True,
        edge=_edge(pictures),
        resample=_one_of(pictures.get("resample", ""), "", *RESAMPLE),
        probability_outputs=_texts(outputs["probabilities"]),
        logit_outputs=_texts(outputs["logits"]),
        multi_label=outputs.get("several_labels", False) is True,
        subject=_text(described.get("subject", "")),
        architecture=_text(described.get("architecture", "")),
    )


def fields_of_name(name: str, folder: Path) -> dict[str, Any]:
    """Return what follows from a classifier's name and its folder."""
    return {
        "name": name,
        "model_variable": f"{name.upper()}_MODEL_NAME",
        "default_model": f"{name}_onnx",
        "sample_file": folder / SAMPLE,
    }


def system_used_by(folder: Path) -> str:
    """Return the code system whose parts this one uses; empty for a classifier of pictures."""
    return read_description(folder, lambda _name, described: _text(described.get("like", "")))


def read_description(folder: Path, contract: Callable[[str, Mapping[str, Any]], Read]) -> Read:
    """Read a system's description in a folder, whose name is the system's, with `contract`."""
    path = folder / FILE
    try:
        if not NAME.fullmatch(folder.name):
            raise ValueError(
                "its folder's name is not 2 to 32 lower-case letters, digits and _, a letter first"
            )
        return contract(folder.name, tomllib.loads(read_text(path)))
    except KeyError as exc:
        raise GourmetError(f"{path} lacks {exc}: docs/models.md says what belongs there") from exc
    except (OSError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise GourmetError(f"{path} does not describe a system: {error_summary(exc)}") from exc


def description_of(system: PictureClassifier) -> dict[str, Any]:
    """Describe `system` in words that `read` turns back into the same system."""
    return {
        "task": system.task,
        "title": system.title,
        "labels": system.labels,
        "architecture": system.architecture,
        **({"subject": system.subject} if system.subject else {}),
        "pictures": {
            "size": system.input_size,
            "mean": system.mean,
            "std": system.std,
            "datatype": system.datatypes[0],
            "layout": system.layout,
            **({name: getattr(system, name) for name in _CUT} if system.resample else {}),
        },
        "outputs": {
            "probabilities": system.probability_outputs,
            "logits": system.logit_outputs,
            "several_labels": system.multi_label,
        },
    }


def write_description(folder: Path, described: Mapping[str, Any]) -> None:
    try:
        (folder / FILE).write_text(f"{_HEADING}{_toml(described)}", encoding="utf-8")
    except UnicodeEncodeError as exc:
        raise GourmetError(f"the title, a label or the name of a file cannot be written: {exc}") from exc


def _toml(table: Mapping[str, Any]) -> str:
    lines = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines.append(f"\n[{key}]\n{_toml(value)}")
        else:  # texts, numbers and lists of JSON are those of TOML, but for one character
            quoted = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{key} = {quoted}\n")
    return "".join(lines)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list of texts")
    return tuple(map(_text, values))


def _edge(pictures: Mapping[str, Any]) -> int:
    edge = int(pictures.get("edge", 0))
    if edge and not int(pictures["size"]) <= edge <= 8192:
        raise ValueError(f"the edge of its pictures is {edge}, and their size {pictures['size']}")
    return edge


def _one_of(value: Any, *allowed: str) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
    return str(value)


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{values!r} has a number that is not finite")
    return numbers
