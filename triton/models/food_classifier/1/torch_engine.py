"""The exported network run by torch. All that needs torch is here.

engines.py imports this module where an instance is to run it and not before: on a CPU another engine does,
and torch takes seconds to import and hundreds of MB to hold.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gourmet.contracts import Tensors
from gourmet.runtime import malloc
from gourmet.runtime.instances import Device
from gourmet.systems.food11 import contract

gc.disable()  # an eighth of torch's import is a search for garbage, and there is none yet
try:
    import torch
finally:
    gc.enable()

# TorchScript profiles in the first run and compiles in the second, for any number of rows. Warming up with
# full batches took a second of each start, and made the first full batch faster by a tenth of one.
WARM_UP_ROWS = (1, 2)

Pixels = npt.NDArray[np.uint8]


class TorchEngine:
    """TorchScript, frozen and fused for this machine; that form cannot be saved, so it is made here."""

    def __init__(self, path: Path, device: Device, threads: int) -> None:
        if device.kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"this torch ({torch.__version__}) sees no GPU")
        if device.kind == "cpu":
            malloc.use(malloc.SERVING)
            torch.set_num_threads(threads)
        self._device = torch.device(str(device))
        network = torch.jit.load(path, map_location=self._device).eval()  # type: ignore[no-untyped-call]
        self._network = torch.jit.optimize_for_inference(torch.jit.freeze(network))
        blank = np.zeros((contract.SYSTEM.input_size, contract.SYSTEM.input_size, 3), np.uint8)
        for rows in WARM_UP_ROWS:
            self.run([blank] * rows)

    def run(self, rows: Sequence[Pixels]) -> Tensors:
        pixels = contract.SYSTEM.normalise(np.stack(rows))
        with torch.inference_mode():
            return {"output": self._network(torch.from_numpy(pixels).to(self._device)).cpu().numpy()}
