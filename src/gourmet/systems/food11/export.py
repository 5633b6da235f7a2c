"""The food network as the three models that are served: TorchScript, ONNX, and ONNX in int8."""

from __future__ import annotations

from typing import Final

from gourmet.deploying.target import Export
from gourmet.systems.food11 import int8
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.network import load
from gourmet.tasks.classification.export import ClassifierExport, Exported

EXPORT: Final[Export] = ClassifierExport(
    SYSTEM,
    DATA,
    load,
    {
        "torchscript": Exported("food_classifier", torchscript=True),
        "onnx": Exported("food_classifier_onnx"),
        "int8": int8.target,
    },
    preprocessing={
        "crop": "the central square",
        "filter": "bilinear, with a reducing gap of 2",
        "code": "gourmet.systems.food11.contract",
    },
    calibrates=True,
)
