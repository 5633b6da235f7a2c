"""From what a served classifier answers to probabilities; every contract of one imports this.

numpy only. A model answers with probabilities, to which it has applied its temperature itself, or
with logits, to which the client applies the temperature that the model's config names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Outputs = Mapping[str, npt.NDArray[Any]]


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    """Probabilities [rows, classes] of `logits`; a temperature above 1 makes them more modest."""
    shifted = logits / np.float32(temperature)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    total: Floats = shifted.sum(axis=-1, keepdims=True)
    return np.asarray(shifted / total, dtype=np.float32)


def read_probabilities(
    outputs: Outputs,
    system: str,
    labels: Sequence[str],
    temperature: float,
    *,
    logits: Sequence[str],
    ready: Sequence[str] = (),
) -> Floats:
    """The probabilities [rows, labels] in `outputs`, by the names that models of `system` use.

    `ready` are outputs that are probabilities already, `logits` those that are not.
    """
    for name in (*ready, *logits):
        if name in outputs:
            rows = np.asarray(outputs[name], dtype=np.float32).reshape(-1, len(labels))
            return rows if name in ready else softmax(rows, temperature)
    raise ValueError(
        f"outputs {sorted(outputs)} hold none of {', '.join((*ready, *logits))}, "
        f"by which {system} models answer"
    )
