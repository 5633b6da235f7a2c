"""The exercise that the digits are for; gourmet.measure.scenarios knows how it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SCENARIOS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    # The lab's own model was exported without a batch dimension; ours has one.
    "digits": (
        "instances_and_delays",
        {"title": "The digits lab", "lone": "onnx-mnist-cpu", "batched": "digits"},
    ),
}
