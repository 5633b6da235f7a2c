"""The exercises that food's models are measured with; gourmet.measure.scenarios knows how they are done."""

from __future__ import annotations

from typing import Final

_PYTHON: Final = "food_classifier"
_ONNX: Final = "food_classifier_onnx"

SCENARIOS: Final = {
    "food": ("serving_lab", {"title": "The food lab", "python": _PYTHON, "onnx": _ONNX}),
    "queue-delay": ("queue_delay", {"model": _ONNX}),
    # What a known lab reports as its best on two P100, in rows per second.
    "gpu": ("one_gpu", {"reference": {_PYTHON: 193.0, _ONNX: 1257.0}}),
    # Beside the model.py of a known lab, which lies in benchmarks/models and gets the same weights.
    "foundation": ("foundation", {"python": _PYTHON, "onnx": _ONNX, "lab": "food_reference_lab"}),
}
