"""The exported network as a function from pixels to logits. All that needs torch is here.

model.py imports this module when an instance starts and not before: Triton also starts a stub just to
ask for the model's config, which would otherwise wait seconds for torch.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from gourmet.systems.food11 import contract

# TorchScript profiles in the first run and compiles in the second, for any number of rows. Warming up with
# full batches took a second of each start, and made the first full batch faster by a tenth of one.
WARM_UP_ROWS = (1, 2)


class FoodNetwork:
    """TorchScript, frozen and fused for this machine; that form cannot be saved, so it is made here."""

    def __init__(self, path, device, threads, max_batch):
        if device.kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError(f"this torch ({torch.__version__}) sees no GPU")
        if device.kind == "cpu":
            _keep_freed_memory()
            torch.set_num_threads(threads)
        self._device = torch.device(str(device))
        self._max_batch = max_batch
        network = torch.jit.load(path, map_location=self._device).eval()
        self._network = torch.jit.optimize_for_inference(torch.jit.freeze(network))
        blank = np.zeros((contract.INPUT_SIZE, contract.INPUT_SIZE, 3), np.uint8)
        for rows in WARM_UP_ROWS:
            self.logits([blank] * rows)

    def logits(self, rows):
        """Logits [rows, classes] of a list of pixel arrays, at most max_batch at a time."""
        if not rows:
            return np.empty((0, len(contract.LABELS)), np.float32)
        chunks = range(0, len(rows), self._max_batch)
        with torch.inference_mode():
            return np.concatenate([self._run(rows[first : first + self._max_batch]) for first in chunks])

    def _run(self, rows):
        pixels = contract.normalise(np.stack(rows))
        return self._network(torch.from_numpy(pixels).to(self._device)).cpu().numpy()


def _keep_freed_memory():
    """Have malloc keep what torch frees between two runs.

    Left alone it returns the larger buffers to the system after every layer and faults them in again:
    14 ms a photo instead of 9 at batch 16, on one thread.
    """
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; elsewhere malloc has other habits
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, 512 << 20)
        libc.mallopt(m_top_pad, 64 << 20)
