"""The exported network as a function from pixels to logits. All that needs torch is here.

model.py imports this module when an instance starts and not before: Triton also starts a stub just to
ask for the model's config, which would otherwise wait seconds for torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gourmet.runtime import malloc
from gourmet.runtime.instances import Device
from gourmet.systems.food11 import contract

# TorchScript profiles in the first run and compiles in the second, for any number of rows. Warming up with
# full batches took a second of each start, and made the first full batch faster by a tenth of one.
WARM_UP_ROWS = (1, 2)

Pixels = npt.NDArray[np.uint8]
Logits = npt.NDArray[np.float32]


class FoodNetwork:
    """TorchScript, frozen and fused for this machine; that form cannot be saved, so it is made here."""

    def __init__(self, path: Path, device: Device, threads: int, max_batch: int) -> None:
        if device.kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"this torch ({torch.__version__}) sees no GPU")
        if device.kind == "cpu":
            malloc.use(malloc.SERVING)
            torch.set_num_threads(threads)
        self._device = torch.device(str(device))
        self._max_batch = max_batch
        network = torch.jit.load(path, map_location=self._device).eval()  # type: ignore[no-untyped-call]
        self._network = torch.jit.optimize_for_inference(torch.jit.freeze(network))
        blank = np.zeros((contract.SYSTEM.input_size, contract.SYSTEM.input_size, 3), np.uint8)
        for rows in WARM_UP_ROWS:
            self.logits([blank] * rows)

    def logits(self, rows: Sequence[Pixels]) -> Logits:
        """Logits [rows, classes] of a list of pixel arrays, at most max_batch at a time."""
        if not rows:
            return np.empty((0, len(contract.SYSTEM.labels)), np.float32)
        chunks = range(0, len(rows), self._max_batch)
        with torch.inference_mode():
            return np.concatenate([self._run(rows[first : first + self._max_batch]) for first in chunks])

    def _run(self, rows: Sequence[Pixels]) -> Logits:
        pixels = contract.SYSTEM.normalise(np.stack(rows))
        logits: Logits = self._network(torch.from_numpy(pixels).to(self._device)).cpu().numpy()
        return logits
