"""The exported network run by torch. All that needs torch is here.

engines.py imports this module where an instance is to run it and not before: on a CPU another engine does,
and torch takes seconds to import and hundreds of MB to hold.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gourmet.runtime import malloc
from gourmet.runtime.batches import Array, Feeds
from gourmet.runtime.instances import Device
from gourmet.systems.food11.contract import SYSTEM

gc.disable()  # an eighth of torch's import is a search for garbage, and there is none yet
try:
    import torch
finally:
    gc.enable()

# TorchScript profiles in the first run and compiles in the second, for any number of rows. Warming up with
# full batches took a second of each start, and made the first full batch faster by a tenth of one.
WARM_UP_ROWS = (1, 2)


class TracedNetwork:
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
        for rows in WARM_UP_ROWS:
            blank = np.zeros((rows, SYSTEM.input_size, SYSTEM.input_size, 3), np.uint8)
            self.run({"input": SYSTEM.normalise(blank)}, ())

    def run(self, feeds: Feeds, _wanted: Sequence[str]) -> list[Array]:
        (rows,) = feeds.values()
        with torch.inference_mode():
            return [self._network(torch.from_numpy(rows).to(self._device)).cpu().numpy()]
