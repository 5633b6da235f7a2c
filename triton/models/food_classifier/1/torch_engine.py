"""Run the exported network with torch. Only this module imports torch.

engines.py imports it only for an instance that needs it: torch takes seconds to import and hundreds of MB.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gourmet.served import malloc
from gourmet.served.batches import Array, Feeds
from gourmet.served.instances import Device
from gourmet.systems.food11.contract import SYSTEM

# OpenMP's threads would spin while they wait, on CPUs that others need. torch reads this on import.
# Figures: backends/pytorch/model.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
gc.disable()  # the garbage collector takes an eighth of torch's import and finds nothing
try:
    import torch
finally:
    gc.enable()

# TorchScript profiles in the first run and compiles in the second. The number of rows does not matter:
# warming up with full batches took 1 s of each start and made the first full batch faster by 0.1 s.
WARM_UP_ROWS = (1, 2)


class TracedNetwork:
    """TorchScript, frozen and fused for this machine. That form cannot be saved, so it is made here."""

    def __init__(self, path: Path, device: Device, threads: int) -> None:
        if device.kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} finds no GPU")
        if device.kind == "cpu":
            malloc.use(malloc.SERVING)
            torch.set_num_threads(threads)
        self._device = torch.device(str(device))
        network = torch.jit.load(path, map_location=self._device).eval()  # type: ignore[no-untyped-call]
        self._network = torch.jit.optimize_for_inference(torch.jit.freeze(network))
        for rows in WARM_UP_ROWS:
            blank = np.zeros((rows, SYSTEM.input_size, SYSTEM.input_size, 3), np.uint8)
            self.run({"input": SYSTEM.normalise(blank)}, ())

    def run(self, feeds: Feeds, _requested: Sequence[str]) -> list[Array]:
        (rows,) = feeds.values()
        with torch.inference_mode():
            return [self._network(torch.from_numpy(rows).to(self._device)).cpu().numpy()]
