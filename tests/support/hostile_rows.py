"""Hostile rows straight to the Python model in a Triton that runs, honest ones between them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import tritonclient.http as triton_http
from support import hostile
from tritonclient.utils import InferenceServerException

from gourmet.systems.food11.contract import SYSTEM

MODEL = "food_classifier"
THREADS = 4
# Batches of other sizes round differently.
SAME = 2e-3


class RowsClient:
    def __init__(self, url: str) -> None:
        self._url = url
        self._mine = threading.local()  # a client for each thread, as tritonclient demands
        self._photos = SYSTEM.examples(6, 11, (200, 150))
        self._known = [self.ask([photo])[0] for photo in self._photos]

    def ask(self, blobs: list[bytes]) -> Any:
        """The probabilities of each; raises where the model refuses."""
        tensor = triton_http.InferInput("INPUT_IMAGE", [len(blobs), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[blob] for blob in blobs], np.object_))
        client = getattr(self._mine, "client", None)
        if client is None:
            client = triton_http.InferenceServerClient(self._url, network_timeout=120.0)
            self._mine.client = client
        return client.infer(MODEL, [tensor]).as_numpy("PROBABILITIES")

    def honest(self, number: int) -> str:
        photo = number % len(self._photos)
        answer = self.ask([self._photos[photo]])[0]
        right = np.abs(answer - self._known[photo]).max() < SAME
        return "answered rightly" if right else f"WRONG answer to photo {photo}"

    def hostile(self, number: int) -> str:
        draw = random.Random(f"row {number}")
        blobs = [hostile.file(draw.randrange(1 << 30))[1] for _ in range(draw.choice((1, 1, 1, 2, 5)))]
        index = draw.randrange(len(blobs) + 1)
        photo = number % len(self._photos)
        try:
            answers = self.ask([*blobs[:index], self._photos[photo], *blobs[index:]])
        except InferenceServerException as exc:
            # A row that is no picture fails its own request, with its place and a reason.
            status, message = str(exc.status()), str(exc.message())
            return (
                "refused"
                if status == "400" and "INPUT_IMAGE row" in message
                else f"{status}: {message}"[:300]
            )
        right = np.abs(answers[index] - self._known[photo]).max() < SAME
        fine = answers.shape == (len(blobs) + 1, 11) and np.isfinite(answers).all() and right
        return "answered" if fine else "WRONG answer to the photo among hostile rows"


def server(http_url: str) -> psutil.Process:
    """The Triton at that address."""
    port = f"--http-port={http_url.rpartition(':')[2]}"
    for process in psutil.process_iter(["cmdline"]):
        if port in (process.info["cmdline"] or ()) and "tritonserver" in process.info["cmdline"][0]:
            return process
    raise AssertionError(f"no Triton with {port}")


def stubs(http_url: str) -> set[int]:
    """The processes of its Python models."""
    return {child.pid for child in server(http_url).children()}  # and not their decoding processes


def attack(triton: Any, numbers: range) -> Counter[str]:
    asker = RowsClient(triton.http_url)

    def ask(number: int) -> str:
        return asker.honest(number) if number % 8 == 0 else asker.hostile(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return Counter(pool.map(ask, numbers))
