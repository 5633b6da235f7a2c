"""A served classifier asked about many pictures at a time, and its answers beside those of its network.

One thread reads; the others encode a batch (Pillow and numpy work outside the interpreter's lock), send it
and wait, each with a client of its own as tritonclient demands. They are one a CPU more than requests may
be in flight, so that encoding goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import gevent
import numpy as np
import numpy.typing as npt
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from gourmet.contracts import BadAnswer, Classification, ModelInfo
from gourmet.pictures.classifier import softmax
from gourmet.pictures.decode import PictureError
from gourmet.runtime import malloc
from gourmet.runtime.instances import available_cpus
from gourmet.serving.client import TritonUnreachable, describe_model, triton
from gourmet.serving.waiting import http_ok
from gourmet.systems import registry
from gourmet.tasks.checking import Wanted, in_threads
from gourmet.tasks.classification import evaluation
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.checking.pictures import Pictures
from gourmet.tasks.system_parts import BadData, SystemParts
from gourmet.training.task import Tick

_AGAIN: Final = 64
# Rows computed in a batch of another size differ in the last digits; on a GPU in half precision, by 0.005.
_SAME_WITHIN: Final = 0.02
_WORST: Final = 10


@dataclass(frozen=True)
class Served:
    """A classifier, the contract of its system, and the Triton that serves it."""

    url: str
    info: ModelInfo
    contract: Classification

    @property
    def labels(self) -> tuple[str, ...]:
        return self.contract.labels_of(self.info)


@dataclass(frozen=True)
class Failure:
    """A request without an answer, and the pictures that it was about."""

    names: Sequence[str]
    reason: str

    def __str__(self) -> str:
        which = self.names[0] if len(self.names) == 1 else f"{self.names[0]} … {self.names[-1]}"
        return f"{which}: {self.reason}"


@dataclass
class Asked:
    """Everything that came back. Rows without an answer are nan."""

    probabilities: Scores
    relevance: Scores  # [pictures]; nan also where the model does not tell
    sent: int = 0  # pictures
    wall_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)  # of answered requests
    failures: list[Failure] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    stopped: bool = False

    @classmethod
    def nothing_yet(cls, pictures: int, labels: int) -> Asked:
        nothing = np.full((pictures, labels + 1), np.nan, dtype=np.float32)
        return cls(nothing[:, :labels], nothing[:, labels])

    def acted_on(self, subject_threshold: float) -> Scores:
        """The probabilities of the answered pictures, as they are acted on: zero for what is not relevant."""
        there = self.answered
        return self.probabilities[there] * ~(self.relevance[there] < subject_threshold)[:, np.newaxis]

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which rows have an answer."""
        there: npt.NDArray[np.bool_] = ~np.isnan(self.probabilities[:, 0])
        return there

    @property
    def mean_in_flight(self) -> float:
        """How many requests were at the server at a time; less than asked for, if encoding is slower."""
        return sum(self.latencies_ms) / 1000.0 / self.wall_s if self.wall_s else 0.0


@dataclass(frozen=True)
class Again:
    """How alike two answers about the same pictures are: in a batch, and alone."""

    pictures: int
    largest_difference: float
    different: tuple[str, ...]  # names of pictures that got another answer alone, and whose it was
    refused: tuple[str, ...] = ()  # names of pictures that got none alone, and why


def describe(url: str, name: str) -> Served:
    """Learn from Triton what `name` takes, and see that it answers its system's sample."""
    with triton(url) as client:
        info = describe_model(client, name)
        served = Served(url, info, registry.classification(info.system))
        (sample,) = served.contract.request_inputs(served.contract.sample(), info).values()
        _ask(client, served, sample)
    return served


def _ask(
    client: InferenceServerClient, served: Served, values: npt.NDArray[Any]
) -> tuple[Scores, Scores | None, str]:
    """Ask once about all rows of `values`; their probabilities and relevance, and the version that answered.

    Raise BadAnswer unless each row has its own.
    """
    spec = served.info.inputs[0]
    tensor = InferInput(spec.name, list(values.shape), spec.datatype)
    tensor.set_data_from_numpy(values)
    result = client.infer(served.info.name, [tensor])
    response = result.get_response()
    outputs = {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}
    for name, output in outputs.items():
        if served.info.max_batch_size and len(output) != len(values):
            raise BadAnswer(f"{name} has {len(output)} rows in answer to {len(values)}")
    rows = served.contract.probabilities(outputs, served.info)
    if rows.shape != (len(values), len(served.labels)):
        raise BadAnswer(
            f"the answer has the shape {list(rows.shape)} instead of {[len(values), len(served.labels)]}"
        )
    if not np.allclose(rows.sum(axis=1), 1.0, atol=1e-3):  # not true of nan either
        raise BadAnswer("the probabilities of a row do not sum to 1")
    return rows, served.contract.relevance(outputs, served.info), str(response.get("model_version", ""))


def ask_all(served: Served, pictures: Pictures, wanted: Wanted, asked: Asked, tick: Tick) -> None:
    """Fill `asked` with the answers about all pictures, in batches of which the last may be smaller.

    A request that fails is noted and the others go on, unless the server is gone.
    """
    at_server, mine = threading.Semaphore(wanted.in_flight), threading.local()
    clients: list[InferenceServerClient] = []
    datatype = served.info.inputs[0].datatype

    def client() -> InferenceServerClient:
        if not hasattr(mine, "client"):
            mine.client = InferenceServerClient(
                served.url, connection_timeout=2.0, network_timeout=wanted.timeout_s
            )
            clients.append(mine.client)
        return mine.client

    def send(batch: tuple[slice, list[bytes]]) -> int:
        rows, blobs = batch
        names, encoded = pictures.names[rows], []
        try:
            for blob in blobs:
                encoded.append(served.contract.encode(blob, datatype))
            values = np.concatenate(encoded)
            with at_server:
                began = time.monotonic()
                probabilities, relevance, version = _ask(client(), served, values)
                took_ms = (time.monotonic() - began) * 1000.0
        except PictureError as exc:
            reason = f"{names[len(encoded)]} cannot be read: {exc} [{exc.code}]"
        except (InferenceServerException, BadAnswer) as exc:
            reason = str(exc)
        except (gevent.Timeout, TimeoutError):
            reason = f"no answer within {wanted.timeout_s:g} s"
        except Exception as exc:  # a lost connection has many names
            if not http_ok(f"http://{served.url}/v2/health/live"):
                raise TritonUnreachable(f"Triton at {served.url} went away") from exc
            reason = f"the connection broke: {exc!r}"
        else:
            asked.probabilities[rows] = probabilities
            if relevance is not None:
                asked.relevance[rows] = relevance
            asked.latencies_ms.append(took_ms)
            asked.versions.add(version)
            return len(names)
        asked.failures.append(Failure(names, reason))
        return len(names)

    started, done = time.monotonic(), 0
    try:
        threads = wanted.in_flight + available_cpus()
        for answered in in_threads(send, _batches(pictures, wanted.batch, asked), threads):
            done += answered
            rate = done / max(1e-9, time.monotonic() - started)
            tick(done / len(pictures), f"{done}/{len(pictures)} · {rate:.0f}/s")
    except TritonUnreachable as exc:
        raise TritonUnreachable(
            f"{exc} after {int(asked.answered.sum())} of {len(pictures)} pictures: "
            "start it again and repeat the check"
        ) from exc
    finally:
        asked.wall_s = time.monotonic() - started
        for each in clients:
            each.close()


def _batches(pictures: Pictures, size: int, asked: Asked) -> Iterator[tuple[slice, list[bytes]]]:
    everything = pictures.read(range(len(pictures)))
    for first in range(0, len(pictures), size):
        try:
            blobs = list(islice(everything, size))
        except OSError as exc:
            raise BadData(f"{pictures.source} cannot be read: {exc}") from exc
        asked.sent += len(blobs)
        yield slice(first, first + len(blobs)), blobs


def ask_again(served: Served, pictures: Pictures, wanted: Wanted, asked: Asked, tick: Tick) -> Again:
    """Ask about pictures from all over, each alone: is the answer in a batch the picture's own?

    A server that drops, repeats or swaps rows answers with good probabilities for the wrong pictures,
    which accuracy alone would show as a bad network.
    """
    there = np.flatnonzero(asked.answered)
    rows = np.sort(np.random.default_rng(0).choice(there, min(_AGAIN, len(there)), replace=False)).tolist()
    alone = Asked.nothing_yet(len(rows), len(served.labels))
    ask_all(served, pictures.some(rows), replace(wanted, in_flight=1, batch=1), alone, tick)
    largest, different = 0.0, []
    for place in np.flatnonzero(alone.answered):
        apart = np.abs(asked.probabilities - alone.probabilities[place]).max(axis=1)
        row, nearest = rows[place], int(np.nanargmin(apart))
        largest = max(largest, float(apart[row]))
        if apart[row] > _SAME_WITHIN:
            whose = (
                f" (its answer went to {pictures.names[nearest]})" if apart[nearest] <= _SAME_WITHIN else ""
            )
            different.append(f"{pictures.names[row]}{whose}")
    return Again(len(rows), largest, tuple(different), tuple(map(str, alone.failures)))


@dataclass(frozen=True)
class Agreement:
    """How far a served model is from its network, over the pictures that it answered."""

    weights: Path
    pictures: int
    different: int  # answered with another class
    largest_difference: float  # of any probability
    worst: list[dict[str, Any]]  # pictures about which the two disagree, or agree least
    top1: float | None  # of the network itself, where there are labels

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Picture, answers of both, and how far apart, for a table."""
        return [
            (
                each["name"],
                f"{each['served']} {each['served_sure']:.3f}",
                f"{each['eager']} {each['eager_sure']:.3f}",
                f"{each['difference']:.1e}",
            )
            for each in self.worst
        ]


def compare(served: Served, pictures: Pictures, asked: Asked, weights: Path, tick: Tick) -> Agreement:
    """Ask the network in `weights` about all pictures that were answered."""
    malloc.use(malloc.TRAINING)
    network, _ = SystemParts(served.info.system, registry.piece).evaluation.load(weights, "")
    rows = np.flatnonzero(asked.answered).tolist()
    logits = evaluation.ask(network, served.contract, pictures.read(rows), len(rows), tick)
    return agreement(asked, softmax(logits, served.info.temperature), pictures, served.labels, weights)


def agreement(
    asked: Asked, theirs: Scores, pictures: Pictures, labels: tuple[str, ...], weights: Path
) -> Agreement:
    """Set the served answers against `theirs`, which are about the answered pictures, row by row."""
    there = np.flatnonzero(asked.answered)
    mine = asked.probabilities[there]
    apart = np.abs(mine - theirs).max(axis=1)
    best, right = mine.argmax(axis=1), theirs.argmax(axis=1)
    # Other classes first, and the largest differences first among them.
    order = np.lexsort((-apart, best == right))[:_WORST]
    return Agreement(
        weights=weights,
        pictures=len(there),
        different=int((best != right).sum()),
        largest_difference=float(apart.max()),
        worst=[
            {
                "name": pictures.names[there[row]],
                "served": labels[best[row]],
                "served_sure": float(mine[row].max()),
                "eager": labels[right[row]],
                "eager_sure": float(theirs[row].max()),
                "difference": float(apart[row]),
            }
            for row in order
        ],
        top1=None if pictures.classes is None else float(np.mean(right == pictures.classes[there])),
    )
