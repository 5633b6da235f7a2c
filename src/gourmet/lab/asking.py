"""Requests of a notebook to models that generate text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from gourmet.contracts import GeneratedText
from gourmet.lab import exercises
from gourmet.stack.connect import connect
from gourmet.systems import registry

_TIMEOUT_S: Final = 60.0

# A text, or a picture as a file.
Example = str | bytes


def ask(model: str, example: Example) -> GeneratedText:
    """Return the whole answer of a served model."""
    with connect(exercises.current().url, _TIMEOUT_S) as triton:
        info = triton.describe(model)
        system = registry.generation(info.system)
        return system.generated(
            triton.infer(model, system.request_inputs(_as_bytes(example), info)).outputs, info
        )


def pieces(model: str, example: Example) -> list[tuple[float, str]]:
    """Return each piece of a streamed answer, with its milliseconds after the request."""
    with connect(exercises.current().url, _TIMEOUT_S) as triton:
        info = triton.describe(model)
        system = registry.generation(info.system)
        began = time.perf_counter()
        return [
            (1000 * (time.perf_counter() - began), system.generated(outputs, info).text)
            for outputs in triton.stream(info, system.request_inputs(_as_bytes(example), info))
            if outputs
        ]


@contextmanager
def keeping_busy(model: str, example: Example, clients: int) -> Iterator[None]:
    """Let `clients` clients ask about `example` until the block ends."""
    enough = threading.Event()

    def ask_again() -> None:
        while not enough.is_set():
            ask(model, example)

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_again) for _ in range(clients)]
        try:
            yield
        finally:
            enough.set()
        for client in asking:
            client.result()


def _as_bytes(example: Example) -> bytes:
    return example.encode() if isinstance(example, str) else example
