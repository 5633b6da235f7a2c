"""Classify a photo, written plainly: every peer does this between request and answer.

Only what a user of these servers would write: Pillow decodes the whole photo, the central square is
shrunk, NumPy normalises, ONNX Runtime runs. The crop and the numbers are those the network was trained
with, so that a peer's answers can be checked against the same file run without any server.

MODEL, LABELS, THREADS and TEMPERATURE come from the environment, as `make bench-peers` sets it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


class PlainClassifier:
    """One ONNX Runtime session, shared by all threads of a process."""

    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(os.environ["THREADS"])
        options.log_severity_level = 3  # not a warning for every constant of the int8 file
        self._session = ort.InferenceSession(os.environ["MODEL"], options, ["CPUExecutionProvider"])
        self._takes_pixels = self._session.get_inputs()[0].type == "tensor(uint8)"
        self._temperature = float(os.environ["TEMPERATURE"])
        self._labels = Path(os.environ["LABELS"]).read_text().split("\n")

    def classify(self, photo: bytes) -> dict[str, Any]:
        pixels = decode(photo)
        row = pixels if self._takes_pixels else normalise(pixels)
        (out,) = self._session.run(None, {self._session.get_inputs()[0].name: row[np.newaxis]})
        # What a model's own probabilities sum to is how likely the picture shows food at all.
        probabilities = out[0] / out[0].sum() if self._takes_pixels else softmax(out[0] / self._temperature)
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


def normalise(pixels: np.ndarray) -> np.ndarray:
    planes = (pixels.astype(np.float32) / 255.0 - MEAN) / STD
    return np.ascontiguousarray(planes.transpose(2, 0, 1))


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()
