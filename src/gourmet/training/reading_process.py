"""A process that reads one file of weights from outside, and writes its tensors into a file in memory.

python -m gourmet.training.reading_process LIMITS        # see gourmet.runtime.sandbox
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import save

from gourmet.runtime import sandbox
from gourmet.runtime.sandbox import Facts, Refused


def _answer(facts: Facts, _data: bytes) -> tuple[Facts, bytes]:
    plain = {name: tensor.detach().contiguous() for name, tensor in _tensors(Path(facts["path"])).items()}
    seen: set[int] = set()
    for name, tensor in plain.items():  # what is stored once and named twice is written twice
        storage = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    names = json.dumps({"names": list(plain)})  # in their order, which the format does not keep
    Path(facts["into"]).write_bytes(save(plain, metadata={"about": names}))
    return {}, b""


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """By name; what training scripts wrap round them is taken off."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, KeyError, IndexError, EOFError) as exc:  # as for bytes of any other kind
        if "GLOBAL" not in str(exc):
            raise Refused("", "it is not a file of weights that torch can read") from exc
        raise Refused(
            "",
            "it holds more than tensors, and loading it would run code out of it: save the weights alone, "
            "with torch.save(network.state_dict(), …)",
        ) from exc
    for wrapping in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapping), Mapping):
            found = found[wrapping]
    if not isinstance(found, Mapping) or not found or not all(map(torch.is_tensor, found.values())):
        raise Refused("", "it holds no dictionary of tensors by name, as network.state_dict() is one")
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    if claimed > 2 * path.stat().st_size + (1 << 20):  # a few are stored once and named twice
        raise Refused("", f"its tensors claim {claimed:,} bytes, and the file has {path.stat().st_size:,}")
    return {str(name): tensor for name, tensor in found.items()}


if __name__ == "__main__":
    sandbox.serve(sandbox.in_a_sentence(_answer))
