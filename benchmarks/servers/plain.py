"""Classify a photo, written plainly: every peer does this between request and answer.

Only what a user of these servers would write: Pillow decodes the whole photo, the central square is
shrunk, ONNX Runtime runs. The crop is the one that the network was trained with, so that a peer's answers
can be checked against the same file run without any server.

MODEL, LABELS and THREADS come from the environment, as `make bench-peers` sets it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image


class PlainClassifier:
    """One ONNX Runtime session, shared by all threads of a process."""

    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(os.environ["THREADS"])
        options.log_severity_level = 3  # not a warning for every constant of the int8 file
        self._session = ort.InferenceSession(os.environ["MODEL"], options, ["CPUExecutionProvider"])
        self._labels = Path(os.environ["LABELS"]).read_text().split("\n")

    def classify(self, photo: bytes) -> dict[str, Any]:
        (out,) = self._session.run(None, {self._session.get_inputs()[0].name: decode(photo)[np.newaxis]})
        # The model's probabilities sum to the probability that the picture shows food.
        probabilities = out[0] / out[0].sum()
        top = [
            {"label": self._labels[i], "probability": float(probabilities[i])}
            for i in np.argsort(-probabilities)[:5]
        ]
        return {**top[0], "top": top}


def decode(photo: bytes) -> np.ndarray:
    """Return the central square, 224 pixels wide, as uint8 [224, 224, 3]."""
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    square = (left, top, left + side, top + side)
    return np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, box=square))
