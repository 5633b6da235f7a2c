"""A running Triton that generates text, as the notebook asks it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import numpy as np

from gourmet.contracts import GeneratedText
from gourmet.errors import GourmetError
from gourmet.lab.server import asking_again
from gourmet.measure import sweep
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import LoadSpec, Point, Through
from gourmet.measure.task import Addresses, MeasureOptions
from gourmet.serving.connect import connect
from gourmet.systems import registry

_TIMEOUT_S: Final = 60.0
_EXAMPLES: Final = 24
_SEED: Final = 5


# A text, or a picture as a file.
LabExample = str | bytes


def ask(url: str, model: str, example: LabExample) -> GeneratedText:
    return ask_together(url, model, [example])[0]


def ask_together(url: str, model: str, examples: Sequence[LabExample]) -> list[GeneratedText]:
    """The answers to several examples in one request."""
    with connect(url, _TIMEOUT_S) as triton:
        info = triton.describe(model)
        system = registry.generation(info.system)
        inputs = [system.request_inputs(_sent(each), info) for each in examples]
        together = {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}
        outputs = triton.infer(model, together).outputs
    return [
        system.generated({name: values[row : row + 1] for name, values in outputs.items()}, info)
        for row in range(len(examples))
    ]


def pieces(url: str, model: str, example: LabExample) -> list[tuple[float, str]]:
    """Each piece of a streamed answer, and how many milliseconds after the request it came."""
    with connect(url, _TIMEOUT_S) as triton:
        info = triton.describe(model)
        system = registry.generation(info.system)
        began = time.perf_counter()
        return [
            (1000 * (time.perf_counter() - began), system.generated(outputs, info).text)
            for outputs in triton.stream(info, system.request_inputs(_sent(example), info))
            if outputs
        ]


def measured(
    url: str, model: str, through: Through, system: str = "", *, levels: Sequence[int], seconds: float
) -> list[Point]:
    """A point for each number of clients, every answer checked; `system` where the model names none."""
    target, options = Addresses(url), MeasureOptions(seconds / 2, 2, 0.5, steadiness=0.5)
    data = DataSource(_EXAMPLES, _SEED)

    def measure() -> list[Point]:
        workload = sweep.prepare(model, target, data, through=through, stepped=system)
        loads = [LoadSpec(model, level, through=through) for level in levels]
        return [sweep.measure(workload, load, target, options) for load in loads]

    # In a thread, since a notebook's own has a loop of events already.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(measure).result()


@contextmanager
def keeping_busy(url: str, model: str, example: LabExample, *, clients: int) -> Iterator[None]:
    """So many clients that ask about `example` again and again until the block ends."""
    with asking_again(lambda: ask(url, model, example), clients) as tally:
        yield
    if tally.failed:
        raise GourmetError(f"{len(tally.failed)} requests beside the block failed: {tally.failed[0]}")


def _sent(example: LabExample) -> bytes:
    return example.encode() if isinstance(example, str) else example
