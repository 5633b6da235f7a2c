"""The digits network as the two models that are served: one batches, one is as its first users know it."""

from __future__ import annotations

from typing import Final

from gourmet.export.picture_export import ClassifierExport, Exported
from gourmet.repository.gate import Export
from gourmet.systems.digits.contract import SYSTEM
from gourmet.systems.digits.data import DATA, bundled
from gourmet.systems.digits.network import load

EXPORT: Final[Export] = ClassifierExport(
    SYSTEM,
    DATA,
    load,
    {
        "onnx": Exported("digits", output="logits"),
        # The names that torch's exporter gave the tensors of the first network of this model.
        "mnist": Exported("onnx-mnist-cpu", input="input.1", output="26", batched=False),
    },
    preprocessing={
        "mean": [0.0],
        "std": [1.0],
        "ink": "white on black; background is what the border mostly is",
        "place": "the longer side 20 pixels, the centre of mass in the middle",
        "scale": "any: the network stretches each image to the range from 0 to 1",
    },
    license="Apache-2.0",
    bundled=lambda: bundled()[0],
)
