"""The gate: a model that answers differently from the network it was exported from does not pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.deploying.target import Check
from gourmet.tasks.classification.accuracy import balanced_accuracy
from gourmet.tasks.datasets import BadData

Pixels = npt.NDArray[np.uint8]
Scores = npt.NDArray[np.float32]
# From pixels [N, …] to scores [N, classes]: logits, or probabilities where the model gives those.
Answers = Callable[[Pixels], Scores]

BATCHES: Final = (1, 2, 16)
MAX_LOGIT_DIFFERENCE: Final = 1e-3
MIN_AGREEMENT: Final = 0.97
MAX_ACCURACY_LOSS: Final = 0.01


def cannot_be_opened(error: Exception) -> Check:
    """The line about a file that its own runtime does not take."""
    return Check("opens", _first_line(error), "yes", False)


def same_answers(network: Answers, model: Answers, photos: Pixels, *, batched: bool = True) -> list[Check]:
    """For exact models: the same logits at every batch size, and the same best class.

    A model that knows no batches is asked about as many photos, one at a time.
    """
    checks = []
    for rows in _batches(photos):
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
    network: Answers, model: Answers, photos: Pixels, classes: npt.NDArray[np.int64] | None
) -> list[Check]:
    """For quantized models: one answer a row at every batch size, and nearly always the same class."""
    checks = []
    for rows in _batches(photos):
        mine, error = _asked(model, photos[:rows])
        checks.append(Check(f"answers, batch {rows}", error or str(rows), str(rows), mine is not None))
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
    if classes is None:
        return checks
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


def _batches(photos: Pixels) -> Sequence[int]:
    """The batch sizes to ask with; the largest is what there are, if there are fewer."""
    if not len(photos):
        raise BadData("no pictures are held out to compare the model with the network: name some with --data")
    return sorted({min(rows, len(photos)) for rows in BATCHES})


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
        return None, _first_line(exc)
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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:80]
