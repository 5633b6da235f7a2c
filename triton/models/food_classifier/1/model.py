"""Classify photos of food: decode each row, run the network once over all rows, answer each request.

The rows of all requests of a call go through the network together. A row that is not a picture fails only its
own request. If decoding a row may take long, a sandboxed process decodes it (gourmet.pictures.decoders); its
request is answered later, and the call does not wait for it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import triton_python_backend_utils as pb_utils
from engines import FoodEngine, open_engine

from gourmet.contracts import client_of_request
from gourmet.errors import GourmetError
from gourmet.pictures.certainty import Floats
from gourmet.pictures.decode import DecodersBusy, PictureError, Pixels, from_base64
from gourmet.pictures.decoders import decoding_for
from gourmet.pictures.header import Header, parse_header
from gourmet.served import malloc
from gourmet.served.instances import available_cpus, parameter, wanted_device
from gourmet.systems.food11 import contract

if TYPE_CHECKING:
    # The pixels of each row of a request, or the error of the request, or None: it is answered later.
    Decoded: TypeAlias = list[Pixels] | pb_utils.TritonError | None

# How long a request may wait for sandboxed processes: the web app's deadline.
_MAX_LATER_S = 10.0
_MAX_LATER = 32


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._temperature = float(parameter(config, "temperature") or 1.0)
        self._max_batch = config["max_batch_size"]
        self._engine = self._open_engine(args, config)
        malloc.give_back()  # the file
        # The engine runs one batch at a time; requests that are answered later use it from other threads.
        self._engine_lock = threading.Lock()
        # Pillow releases the GIL while it decodes, so the rows of a batch decode in parallel.
        self._decoders = ThreadPoolExecutor(available_cpus(), thread_name_prefix="decode")
        # Requests with rows that sandboxed processes decode; the processes are shared fairly between clients.
        self._later = ThreadPoolExecutor(_MAX_LATER, thread_name_prefix="later")
        self._places = threading.Semaphore(_MAX_LATER)
        self._stopped = threading.Event()

    def execute(
        self, requests: Sequence[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse | None]:
        jobs = [self._decode(request) for request in requests]
        rows = [row for job in jobs if isinstance(job, list) for row in job]
        return self._answer_jobs(jobs, rows)

    def finalize(self) -> None:
        self._stopped.set()
        for pool in (self._decoders, self._later):
            pool.shutdown(wait=False, cancel_futures=True)

    def _open_engine(self, args: dict[str, str], config: dict[str, Any]) -> FoodEngine:
        version = Path(args["model_repository"]) / args["model_version"]
        try:
            return open_engine(version, config, wanted_device(args), pb_utils.Logger.log_warn)
        except GourmetError as exc:
            raise pb_utils.TritonModelException(f"{args['model_name']}: {exc}") from exc

    def _decode(self, request: pb_utils.InferenceRequest) -> Decoded:
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT_IMAGE").as_numpy()
        blobs = tensor.ravel()
        # This thread decodes the first row: most requests have one row and need no other thread.
        decoding = [self._decoders.submit(_decoded_here, blob) for blob in blobs[1:]]
        rows = []
        for row, blob in enumerate(blobs):
            try:
                rows.append(decoding[row - 1].result() if row else _decoded_here(blob))
            except PictureError as exc:
                return _refusal(exc, row, len(blobs))
        if any(isinstance(row, Header) for row in rows):
            return self._answer_later(request, rows)
        return rows

    def _answer_later(
        self, request: pb_utils.InferenceRequest, rows: Sequence[Pixels | Header]
    ) -> pb_utils.TritonError | None:
        """Let a thread of `_later` answer the request if there is a place."""
        if not self._places.acquire(blocking=False):
            return _busy(
                f"{_MAX_LATER} requests wait for decoders, as many as may: send the request again later"
            )
        deadline = time.monotonic() + min(_MAX_LATER_S, request.timeout() / 1e6 or _MAX_LATER_S)
        client = client_of_request(request.parameters())
        self._later.submit(self._answer_alone, request.get_response_sender(), rows, deadline, client)
        return None

    def _answer_alone(
        self,
        sender: pb_utils.InferenceResponseSender,
        rows: Sequence[Pixels | Header],
        deadline: float,
        client: str,
    ) -> None:
        try:
            job = self._decode_in_sandbox(sender, rows, deadline, client)
            (response,) = self._answer_jobs([job], job if isinstance(job, list) else [])
        except Exception as exc:  # the client needs an answer, and nothing else would report the error
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(exc)))
        finally:
            self._places.release()
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _decode_in_sandbox(
        self,
        sender: pb_utils.InferenceResponseSender,
        rows: Sequence[Pixels | Header],
        deadline: float,
        client: str,
    ) -> Decoded:
        decoded = []
        left_s = deadline - time.monotonic()
        with decoding_for(left_s, lambda: self._stopped.is_set() or sender.is_cancelled(), client):
            for number, row in enumerate(rows):
                try:
                    decoded.append(contract.SYSTEM.pixels(row) if isinstance(row, Header) else row)
                except PictureError as exc:
                    return _refusal(exc, number, len(rows))
                except DecodersBusy as exc:
                    return _busy(str(exc))
        return decoded

    def _answer_jobs(
        self, jobs: Sequence[Decoded], rows: Sequence[Pixels]
    ) -> list[pb_utils.InferenceResponse | None]:
        """Return a response for each job, in their order. All `rows` go through the network together."""
        probabilities, food, dishes = self._run_network(rows)
        names, likely = _best_dishes(dishes)
        responses: list[pb_utils.InferenceResponse | None] = []
        first = 0
        for job in jobs:
            if not isinstance(job, list):
                responses.append(job and pb_utils.InferenceResponse(error=job))
                continue
            job_rows = slice(first, first + len(job))
            of_job = probabilities[job_rows]
            first += len(job)
            labels = np.array(
                [contract.SYSTEM.labels[best].encode() for best in of_job.argmax(axis=1)], np.object_
            )
            tensors = [
                pb_utils.Tensor("FOOD_LABEL", labels.reshape(-1, 1)),
                pb_utils.Tensor("PROBABILITY", of_job.max(axis=1, keepdims=True)),
                pb_utils.Tensor("PROBABILITIES", np.ascontiguousarray(of_job)),
                pb_utils.Tensor("FOOD", np.ascontiguousarray(food[job_rows, np.newaxis])),
                pb_utils.Tensor(contract.DISHES, names[job_rows]),
                pb_utils.Tensor(contract.DISH_PROBABILITIES, np.ascontiguousarray(likely[job_rows])),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses

    def _run_network(self, rows: Sequence[Pixels]) -> tuple[Floats, Floats, Floats]:
        """Return the probabilities of labels [rows, labels], of food [rows] and of dishes [rows, dishes].

        At most max_batch_size rows go through the network at a time.
        """
        system, engine, answers = contract.SYSTEM, self._engine, []
        for first in range(0, len(rows), self._max_batch):
            batch = system.tensor(np.stack(rows[first : first + self._max_batch]), engine.datatype)
            with self._engine_lock:
                outputs = dict(
                    zip(engine.outputs, engine.run({engine.input: batch}, engine.outputs), strict=True)
                )
            unknown = np.zeros((len(batch), len(system.dishes)), np.float32)
            dishes = outputs.get(contract.ALL_DISHES, unknown)
            answers.append((*system.scores_from(outputs, self._temperature), dishes))
        if not answers:
            widths = len(system.labels), len(system.dishes)
            labels, dishes = (np.empty((0, width), np.float32) for width in widths)
            return labels, np.empty(0, np.float32), dishes
        probabilities, food, dishes = map(np.concatenate, zip(*answers, strict=True))
        return probabilities, food, dishes


def _best_dishes(probabilities: Floats) -> tuple[Any, Floats]:
    """Return the names of the best dishes [rows, 3] and their probabilities."""
    names = np.full((len(probabilities), contract.BEST), b"", np.object_)
    likely = np.zeros((len(probabilities), contract.BEST), np.float32)
    for row, best in enumerate(contract.SYSTEM.best_dishes(probabilities)):
        for place, (name, probability) in enumerate(best):
            names[row, place], likely[row, place] = name.encode(), probability
    return names, likely


def _decoded_here(blob: bytes) -> Pixels | Header:
    """Return the pixels of a harmless picture, or the header of one that a sandboxed process must decode."""
    head = parse_header(from_base64(blob))
    return contract.SYSTEM.pixels(head) if head.is_harmless else head


def _busy(reason: str) -> pb_utils.TritonError:
    return pb_utils.TritonError(reason, pb_utils.TritonError.UNAVAILABLE)


def _refusal(exc: PictureError, row: int, rows: int) -> pb_utils.TritonError:
    reason = f"INPUT_IMAGE row {row} of {rows}: {exc} [{exc.code}]"
    return pb_utils.TritonError(reason, pb_utils.TritonError.INVALID_ARG)
