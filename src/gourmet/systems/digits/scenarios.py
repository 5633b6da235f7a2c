"""The exercise that the digits are for; gourmet.measure.scenarios knows how it is done."""

from __future__ import annotations

from typing import Final

SCENARIOS: Final = {
    # The lab's own model was exported without a batch dimension; ours has one.
    "digits": (
        "instances_and_delays",
        {"title": "The digits lab", "lone": "onnx-mnist-cpu", "batched": "digits"},
    ),
}
