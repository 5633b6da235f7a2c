"""Photos in, food out: decode each row, run the network once over all of them, answer each request.

Rows of all requests of one call go through the network together. A row that is not a picture fails its
own request, with a reason, and no other.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from gourmet.pictures.classifier import relevance, softmax
from gourmet.pictures.decode import PictureError, from_base64
from gourmet.runtime import manifest
from gourmet.runtime.instances import CPU, available_cpus, cpu_threads, parameter, wanted_device
from gourmet.systems.food11 import contract

if TYPE_CHECKING:
    from food_network import FoodNetwork, Logits, Pixels

    # The pixels of each row of a request, or the error that refuses the request.
    Decoded: TypeAlias = list[Pixels] | pb_utils.TritonError


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._temperature = float(parameter(config, "temperature") or 1.0)
        self._network = self._load_network(args, config)
        # Pillow decodes outside the interpreter's lock, so the rows of a batch decode side by side.
        self._decoders = ThreadPoolExecutor(available_cpus(), thread_name_prefix="decode")

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        jobs = [self._decode(request) for request in requests]
        rows = [row for job in jobs if isinstance(job, list) for row in job]
        logits = self._network.logits(rows)
        return self._answer(jobs, softmax(logits, self._temperature), relevance(logits)[:, np.newaxis])

    def finalize(self) -> None:
        self._decoders.shutdown(wait=False, cancel_futures=True)

    def _load_network(self, args: dict[str, str], config: dict[str, Any]) -> FoodNetwork:
        path = Path(args["model_repository"]) / args["model_version"] / "model.pt"
        try:
            manifest.check(path, config)
        except manifest.ManifestError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        gc.disable()  # an eighth of torch's import is a search for garbage, and there is none yet
        try:
            from food_network import FoodNetwork
        finally:
            gc.enable()

        device, threads = wanted_device(args), cpu_threads(config)
        try:
            return FoodNetwork(path, device, threads, config["max_batch_size"])
        except RuntimeError as exc:
            if device.kind == "cpu" or device.required:
                raise pb_utils.TritonModelException(
                    f"{args['model_name']} cannot run {path.name} on {device}: {exc}. Export it again with "
                    "`gourmet deploy`, or choose a device that is there: KIND_AUTO or KIND_CPU"
                ) from exc
            pb_utils.Logger.log_warn(f"{args['model_name']} takes the CPU instead of {device}: {exc}")
            return FoodNetwork(path, CPU, threads, config["max_batch_size"])

    def _decode(self, request: pb_utils.InferenceRequest) -> Decoded:
        blobs = pb_utils.get_input_tensor_by_name(request, "INPUT_IMAGE").as_numpy().ravel()
        # The first row decodes here: a request of one row, the usual one, needs no other thread.
        decoding = [self._decoders.submit(_pixels, blob) for blob in blobs[1:]]
        rows = []
        for row, blob in enumerate(blobs):
            try:
                rows.append(decoding[row - 1].result() if row else _pixels(blob))
            except PictureError as exc:
                reason = f"INPUT_IMAGE row {row} of {len(blobs)}: {exc} [{exc.code}]"
                return pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG)
        return rows

    def _answer(
        self, jobs: Sequence[Decoded], probabilities: Logits, food: Logits
    ) -> list[pb_utils.InferenceResponse]:
        """One response a request, in the order of the requests."""
        responses, first = [], 0
        for job in jobs:
            if not isinstance(job, list):
                responses.append(pb_utils.InferenceResponse(error=job))
                continue
            its_rows = slice(first, first + len(job))
            mine = probabilities[its_rows]
            first += len(job)
            labels = np.array(
                [contract.SYSTEM.labels[best].encode() for best in mine.argmax(axis=1)], np.object_
            )
            tensors = [
                pb_utils.Tensor("FOOD_LABEL", labels.reshape(-1, 1)),
                pb_utils.Tensor("PROBABILITY", mine.max(axis=1, keepdims=True)),
                pb_utils.Tensor("PROBABILITIES", np.ascontiguousarray(mine)),
                pb_utils.Tensor("FOOD", np.ascontiguousarray(food[its_rows])),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses


def _pixels(blob: bytes) -> npt.NDArray[np.uint8]:
    return contract.SYSTEM.pixels(from_base64(blob))
