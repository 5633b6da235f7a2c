"""Write the weights that the food network keeps as they are: Google's food_V1, with those dishes of its last
layer that systems/food11/dishes.csv names.

`python scripts/pack_starting_weights.py FOOD_V1.safetensors`: a MobileNetV1 that takes (pixel − 128) / 128,
its batch normalisation folded in, as converted from the TensorFlow Lite file that NOTICE names. They are
written in half precision, and for the input of our network: normalisation goes into the first convolution.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from gourmet.systems.food11 import contract
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.network import STARTING_WEIGHTS, body
from gourmet.training.files import load_tensors, save_tensors


def main(path: Path) -> None:
    theirs, _ = load_tensors(path)
    tensors = [theirs[name] for name in sorted(theirs, key=_sort_key) if name.startswith("features.")]
    own_state = body().state_dict()
    for name, tensor in zip(own_state, tensors, strict=True):
        own_state[name].copy_(tensor)
    mean, std = (255 * torch.tensor(values) for values in (contract.SYSTEM.mean, contract.SYSTEM.std))
    first, bias = own_state["0.weight"], own_state["0.bias"]
    bias += first.sum(dim=(2, 3)) @ ((mean - 128) / 128)
    first *= (std / 128).view(1, 3, 1, 1)
    kept = {f"features.{name}": tensor for name, tensor in own_state.items()}
    outputs = [dish.output for dish in SYSTEM.dishes]
    for name in ("weight", "bias"):
        kept[f"dishes.{name}"] = theirs[f"head.{name}"][outputs]
    halved = {name: tensor.half() for name, tensor in kept.items()}
    save_tensors(STARTING_WEIGHTS, halved, {"from": path.name})


def _sort_key(name: str) -> tuple[int, bool]:
    """Return a sort key: layers in their order, and each weight before its bias."""
    parts = name.split(".")
    return (int(parts[1]) if parts[1].isdigit() else -1, parts[-1] == "bias")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
