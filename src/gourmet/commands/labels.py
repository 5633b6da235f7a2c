"""The labels of a classifier, as people write them for an option."""

from __future__ import annotations

from pathlib import Path

from gourmet.errors import UsageError, printable
from gourmet.runtime.reading import in_short, read_text


def labels_of(text: str) -> tuple[str, ...]:
    """Read `--labels`: a,b,c, or a file with one label a line."""
    path = Path(text)
    if "," not in text and not path.is_file():
        raise UsageError(f"--labels {text!r} is neither a file nor a list such as rose,tulip")
    try:
        listed = "\n".join(text.split(",")) if "," in text else read_text(path)
    except (OSError, ValueError) as exc:
        raise UsageError(f"--labels {text} is not a text file, with a label a line: {in_short(exc)}") from exc
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
