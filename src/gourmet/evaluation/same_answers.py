"""The gate: a model that answers differently from the network it was exported from does not pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.evaluation.accuracy import Scores
from gourmet.evaluation.system_parts import BadData
from gourmet.repository.gate import Check

Pixels = npt.NDArray[np.uint8]
# From pixels or the network's rows [N, …] to scores [N, classes]: logits, or probabilities where the model
# gives those.
Answers = Callable[[npt.NDArray[Any]], Scores]

BATCHES: Final = (1, 2, 16)
MAX_LOGIT_DIFFERENCE: Final = 1e-3
MIN_AGREEMENT: Final = 0.97
# For made-up pictures: more of them lie between two classes, where rounding decides.
MIN_AGREEMENT_MADE_UP: Final = 0.85
# Of few photos one more may be lost by chance: then up to this many standard errors.
MAX_ACCURACY_LOSS: Final = 0.01
_ERRORS: Final = 1.96
TELLING: Final = 50  # labelled photos: with fewer, one of them is more than what may be lost


def verify(
    open_file: Callable[[Path], Answers], compare: Callable[[Answers], Sequence[Check]]
) -> Callable[[Path], Sequence[Check]]:
    """Open a file with `open_file`, as the server will, and compare its answers with those of its source."""

    def verified(path: Path) -> Sequence[Check]:
        try:
            return compare(open_file(path))
        except BadData:
            raise
        except Exception as exc:  # whatever a runtime raises on a broken model, the gate's answer is no
            reason = next(iter(str(exc).splitlines()), type(exc).__name__)[:80]
            return [Check("opens and answers", reason, "an answer a row", False)]

    return verified


def same_answers(
    network: Answers, model: Answers, photos: Pixels, allowed: float = MAX_LOGIT_DIFFERENCE
) -> list[Check]:
    """Check an exact model at every batch size: scores within `allowed`, and the same best class.

    A class that the network scores as high as its own, but for that difference, is not another answer.
    """
    checks, agreeing, compared = [], 0, 0
    for size in _batches(photos):
        scores, right = _checked_scores(model, photos[:size]), _checked_scores(network, photos[:size])
        difference = float(np.abs(scores - right).max())
        what = f"largest difference, batch {size}"
        checks.append(Check(what, f"{difference:.1e}", f"{allowed:.1e}", difference <= allowed))
        chosen = np.take_along_axis(right, scores.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
        agreeing += int((chosen >= right.max(axis=1) - allowed).sum())
        compared += size
    agreement = Check("top-1 agreement", f"{agreeing} of {compared}", f"{compared}", agreeing == compared)
    return [*checks, agreement]


def close_answers(
    network: Answers, model: Answers, photos: Pixels, classes: npt.NDArray[np.int64] | None
) -> list[Check]:
    """Check a quantized model: the same answer at every batch size, and nearly always the same class.

    `classes` are those of the first photos; too few of them say nothing about accuracy.
    """
    checks = []
    for rows in _batches(photos):
        _checked_scores(model, photos[:rows])
        checks.append(Check(f"answers, batch {rows}", str(rows), str(rows), True))
    theirs, right = _best(model, photos), _best(network, photos)
    labelled = len(photos if classes is None else classes)
    parts = [
        (slice(labelled), "photos", MIN_AGREEMENT),
        (slice(labelled, None), "made up", MIN_AGREEMENT_MADE_UP),
    ]
    for part, what, goal in parts:
        if len(photos[part]):
            agreement = float(np.mean(theirs[part] == right[part]))
            words = f"top-1 agreement, {len(photos[part])} {what}"
            checks.append(Check(words, f"{agreement:.4f}", f"at least {goal}", agreement >= goal))
    if classes is None:
        return checks
    if labelled < TELLING:
        measured = f"not known: {labelled} labelled photos"
        return [*checks, Check("balanced accuracy lost", measured, f"{TELLING} or more would tell", True)]
    lost, error = _paired_loss(right[:labelled], theirs[:labelled], classes)
    allowed = max(MAX_ACCURACY_LOSS, _ERRORS * error)
    checks.append(
        Check(
            "balanced accuracy lost",
            f"{100 * lost:.2f} points",
            f"within {100 * allowed:.2f}",
            abs(lost) <= allowed,
        )
    )
    return checks


def _paired_loss(
    right: npt.NDArray[Any], theirs: npt.NDArray[Any], classes: npt.NDArray[np.int64]
) -> tuple[float, float]:
    """Return the balanced accuracy that was lost on the same photos, and its standard error."""
    lost = (right == classes).astype(float) - (theirs == classes)
    of_classes = [lost[classes == class_id] for class_id in np.unique(classes)]
    variance = sum(part.var() / len(part) for part in of_classes)
    return float(np.mean([part.mean() for part in of_classes])), math.sqrt(variance) / len(of_classes)


def _batches(photos: Pixels) -> Sequence[int]:
    """Return the batch sizes to compare, none larger than the number of pictures."""
    if not len(photos):
        raise BadData("no pictures are held out to compare the model with the network: name some with --data")
    return sorted({min(rows, len(photos)) for rows in BATCHES})


def _best(answers: Answers, photos: Pixels) -> npt.NDArray[np.signedinteger[Any]]:
    batches = np.split(photos, range(BATCHES[-1], len(photos), BATCHES[-1]))
    return np.concatenate([answers(batch).argmax(axis=1) for batch in batches])


def _checked_scores(model: Answers, photos: Pixels) -> Scores:
    scores = model(photos)
    if scores.ndim != 2 or len(scores) != len(photos):
        raise ValueError(f"{len(photos)} rows have an answer of the shape {list(scores.shape)}")
    if not np.isfinite(scores).all():
        raise ValueError(f"{len(photos)} rows have an answer that is not finite")
    return scores
