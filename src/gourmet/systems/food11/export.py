"""The food network as three served models: one that takes photos, ONNX, and ONNX in int8."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gourmet.export.picture_export import ClassifierExport, Exported, Source
from gourmet.repository.gate import Export, Target
from gourmet.systems.food11 import int8
from gourmet.systems.food11.contract import ALL_DISHES, SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.network import Food11Network, load, with_dishes

_ONNX: Final = Exported("food_classifier_onnx", more=[ALL_DISHES], graph=with_dishes)


def from_photos(source: Source) -> Target:
    """Return the target that decodes photos: a GPU runs it in fp32, a CPU in eight bits."""
    target = replace(_ONNX, model="food_classifier")(source)
    files = [*target.files]
    if isinstance(source.network, Food11Network):
        files.append(replace(int8.int8_file(source, "model_int8.onnx"), is_optional=True))
    return replace(target, files=files, config=None, labels=())


EXPORT: Final[Export] = ClassifierExport(
    SYSTEM,
    DATA,
    load,
    {
        "photos": from_photos,
        "onnx": _ONNX,
        "int8": int8.target,
    },
    preprocessing={
        "crop": "the central square",
        "filter": "bilinear, with a reducing gap of 2",
        "code": "gourmet.systems.food11.contract",
    },
    license="other: research data, for demonstration and study",
    calibrates=True,
)
