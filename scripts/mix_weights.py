"""Mix the weights of two runs of one network, and copy the files of the second run.

    python scripts/mix_weights.py FIRST/best.safetensors SECOND/best.safetensors 0.3 OUT/best.safetensors

A captioner that learned by reward says more of what people say, and less of what is in one photo alone.
Weights on the way there are better than both ends at the first, and lose little of the second.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from gourmet.export.text_int8 import rounded
from gourmet.training.files import put_tensors, save_tensors

if __name__ == "__main__":
    from gourmet.systems.captioner.network import load

    first, second, share, out = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    before, after = load(first), load(second)
    own, other = (run.network.state_dict() for run in (before, after))
    mixed = {name: tensor.lerp(other[name], share) for name, tensor in own.items()}
    put_tensors(before.network, mixed, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for path in second.parent.iterdir():
        if path.name in ("config.json", "vocab.txt", "vision-int8.onnx", "run.json"):
            shutil.copy(path, out.parent)
    about = {**after.about, "mixed": {"with": str(first), "share": share}}
    save_tensors(out, rounded(before.network).state_dict(), about)
