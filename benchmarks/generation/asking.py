"""Servers asked over HTTP, all by one client, each answer compared with the one that is given alone.

What a client costs is a good part of what is measured where an answer takes a few milliseconds on the same
processors, so that servers are comparable only as one client sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from generation.sentences import BenchExamples, same_as_alone
from harness.load import BenchLoad, BenchWindow, HttpClient, http_loop
from harness.run import Measure

FIRST_PIECE_MS: Final = "first piece ms"
# How a line of a stream of events begins that has one's data.
DATA: Final = b"data: "


class Exchanged(NamedTuple):
    """The answer to an example, how many bytes went both ways for it, and when its first piece came."""

    text: str
    transferred: int
    first_ms: float = 0.0


Exchange = Callable[[HttpClient, Any], Exchanged]


def measure_of(
    arm: str, port: int, examples: BenchExamples, exchange: Exchange, *, agrees: bool = True
) -> Measure:
    """Windows of a server that answers already; it `agrees` if it says what the network says."""
    exchanged = [*_alone(port, examples, exchange)]
    alone = [each.text for each in exchanged]
    transferred = float(np.mean([each.transferred for each in exchanged]))
    agreement = examples.agreement(arm, alone) if agrees else {}
    figures = {"requests": 1.0, "bytes": transferred, **agreement}

    def measure(load: BenchLoad) -> BenchWindow:
        first_ms: list[float] = []

        def ask(client: HttpClient, number: int) -> int:
            def say(example: Any) -> str:
                found = exchange(client, example)
                first_ms.append(found.first_ms)
                return found.text

            return asked(arm, examples.examples, alone, say, number)

        found = http_loop(load, partial(_client, port), ask, examples.options)
        first = {FIRST_PIECE_MS: float(np.median(first_ms))} if any(first_ms) else {}
        return replace(found, figures={**figures, **first})

    return measure


def asked(
    arm: str, examples: Sequence[Any], alone: Sequence[str], say: Callable[[Any], str], number: int
) -> int:
    """The answer has to be what the arm says when nothing else is asked."""
    place = number % len(examples)
    same_as_alone(arm, say(examples[place]), alone[place])
    return 1


def answers(port: int, example: Any, exchange: Exchange) -> None:
    """Raise OSError or ValueError unless there is one."""
    with closing(_client(port)) as client:
        exchange(client, example)


def _alone(port: int, examples: BenchExamples, exchange: Exchange) -> Iterator[Exchanged]:
    with closing(_client(port)) as client:
        for each in examples.examples:
            yield exchange(client, each)


def _client(port: int) -> HttpClient:
    return HttpClient(port, {"Content-Type": "application/json"})
