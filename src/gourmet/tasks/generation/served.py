"""What is served of a network that generates: files of its parts, and whether they answer as it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from gourmet.deploying.target import Check
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import Vocabulary
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Loop, Row
from gourmet.runtime.manifest import sha256
from gourmet.tasks.generation.onnx_graph import OPSET

# Of the answers, the share whose words need not be those of the network; of a few, one.
_DIFFER: Final = 0.01
_FEW: Final = 10


def write_package(
    path: Path, files: Mapping[str, bytes], form: str, elsewhere: Mapping[str, str] = package.NOTHING
) -> dict[str, Any]:
    package.write(path, files, elsewhere)
    return {"form": f"ONNX in a package, {form}", "opset": OPSET, "holds": sorted(files)}


def write_reference(
    path: Path,
    files: Mapping[str, bytes],
    model: str,
    elsewhere: Mapping[str, str] = package.NOTHING,
) -> dict[str, Any]:
    """For models that need the same package, which lies in the repository once."""
    with TemporaryDirectory() as folder:
        made = Path(folder) / package.FILE
        package.write(made, files, elsewhere)
        package.write_reference(path, model, sha256(made))
    return {"form": "a reference to the package of a model beside it"}


def served_answers(
    engine: Engine, vocabulary: Vocabulary, rows: Sequence[Row], rows_at_once: int
) -> list[list[int]]:
    """The loop's, which has as many of them at work as it takes."""
    loop = Loop(engine, start=vocabulary.start, end=vocabulary.end, max_rows=rows_at_once)
    loop.complete(rows)
    return [row.tokens for row in rows]


def agreement(
    found: Sequence[Sequence[int]], right: Sequence[Sequence[int]], *, fp32: bool, what: str, compared: int
) -> Check:
    """`compared` tokens of each are."""
    texts = len(right)
    same = sum(a[:compared] == b[:compared] for a, b in zip(found, right, strict=True))
    least = texts - max(int(_DIFFER * texts), texts >= _FEW)
    allowed = f"at least {least}" + ("" if fp32 or same >= least else "; --fp32 rounds nothing")
    return Check("the network's own words", f"{same} of {texts} {what}", allowed, same >= least)


def with_words(vocabulary: Vocabulary, found: Sequence[Sequence[int]]) -> Check:
    count = sum(any(map(str.isalpha, vocabulary.decode(answer))) for answer in found)
    least = 2 * count >= len(found)
    return Check("answers with a word in them", f"{count} of {len(found)}", "at least half", least)
