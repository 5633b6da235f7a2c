"""The gate: a model that answers differently from the network it was exported from does not pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.deploying.target import Answers, Pixels, Scores
from gourmet.errors import GourmetError

BATCHES: Final = (1, 2, 16)
MAX_LOGIT_DIFFERENCE: Final = 1e-3
MIN_AGREEMENT: Final = 0.97
MAX_ACCURACY_LOSS: Final = 0.01


class Refused(GourmetError):
    """An export that does not pass; the message is the table."""


@dataclass(frozen=True)
class Check:
    """One line of the gate's table."""

    what: str
    measured: str
    allowed: str
    passed: bool


def table(checks: list[Check]) -> str:
    """The checks as text, one a line."""
    rows = [("check", "measured", "allowed", "")]
    rows += [(c.what, c.measured, c.allowed, "pass" if c.passed else "FAIL") for c in checks]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def require(model: str, checks: list[Check]) -> None:
    """Raise Refused unless every check passed."""
    if not all(check.passed for check in checks):
        raise Refused(f"{model} is not deployed; what is served stays as it is\n{table(checks)}")


def same_answers(network: Answers, model: Answers, photos: Pixels, *, batched: bool = True) -> list[Check]:
    """For exact models: the same logits at every batch size, and the same best class.

    A model that knows no batches is asked about as many photos, one at a time.
    """
    checks = []
    for rows in BATCHES:
        some = photos[:rows]
        asked = f"batch {rows}" if batched else f"{rows} alone"
        mine, error = _asked(model, some) if batched else _asked_alone(model, some)
        if mine is None:
            checks.append(Check(f"answers, {asked}", error, "an answer a row", False))
            continue
        right = network(some)
        difference = float(np.abs(mine - right).max())
        close = difference <= MAX_LOGIT_DIFFERENCE
        checks.append(Check(f"logits, {asked}", f"{difference:.1e}", f"{MAX_LOGIT_DIFFERENCE:.0e}", close))
        equal = int((mine.argmax(axis=1) == right.argmax(axis=1)).sum())
        checks.append(Check(f"top-1, {asked}", f"{equal} equal", f"{rows}", equal == rows))
    return checks


def close_answers(
    network: Answers, model: Answers, photos: Pixels, classes: npt.NDArray[np.int64]
) -> list[Check]:
    """For quantized models: one answer a row at every batch size, and nearly always the same class."""
    checks = []
    for rows in BATCHES:
        mine, error = _asked(model, photos[:rows])
        checks.append(
            Check(f"answers, batch {rows}", error or str(len(photos[:rows])), str(rows), mine is not None)
        )
    if not all(check.passed for check in checks):
        return checks
    theirs, right = _best(model, photos), _best(network, photos)
    agreement = float(np.mean(theirs == right))
    checks.append(
        Check(
            f"top-1 agreement, {len(photos)} photos",
            f"{agreement:.4f}",
            f"at least {MIN_AGREEMENT}",
            agreement >= MIN_AGREEMENT,
        )
    )
    lost = balanced_accuracy(right, classes) - balanced_accuracy(theirs, classes)
    checks.append(
        Check(
            "balanced accuracy lost",
            f"{100 * lost:.2f} points",
            f"within {100 * MAX_ACCURACY_LOSS:.0f}",
            abs(lost) <= MAX_ACCURACY_LOSS,
        )
    )
    return checks


def balanced_accuracy(answers: npt.NDArray[np.signedinteger[Any]], classes: npt.NDArray[np.int64]) -> float:
    """The mean over the classes that occur of the share answered rightly."""
    return float(np.mean([(answers[classes == c] == c).mean() for c in np.unique(classes)]))


def batched(photos: Pixels, rows: int = BATCHES[-1]) -> Iterator[Pixels]:
    """`photos` in batches, the last one ragged."""
    for first in range(0, len(photos), rows):
        yield photos[first : first + rows]


def _best(answers: Answers, photos: Pixels) -> npt.NDArray[np.signedinteger[Any]]:
    return np.concatenate([answers(batch).argmax(axis=1) for batch in batched(photos)])


def _asked(model: Answers, photos: Pixels) -> tuple[Scores | None, str]:
    """The model's answers, or what is wrong with them in a few words."""
    try:
        scores = model(photos)
    except Exception as exc:  # whatever a runtime raises on a broken model, the gate's answer is no
        return None, str(exc).splitlines()[0][:80]
    if scores.ndim != 2 or len(scores) != len(photos):
        return None, f"shape {list(scores.shape)}"
    if not np.isfinite(scores).all():
        return None, "not finite"
    return scores, ""


def _asked_alone(model: Answers, photos: Pixels) -> tuple[Scores | None, str]:
    """Like `_asked`, of a model that takes one photo at a time."""
    answers = [_asked(model, photos[row : row + 1]) for row in range(len(photos))]
    errors = [error for scores, error in answers if scores is None]
    if errors:
        return None, errors[0]
    return np.concatenate([scores for scores, _ in answers if scores is not None]), ""
