"""Captions by one graph and a loop in the client, against a loop in Triton that sees a picture once.

The tables of a known student project: its model takes the picture and all words so far, and answers with the
logits of every place. First that under its own configs, then captions of the same photos by the client's loop
and by ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gourmet import repository
from gourmet.deploying.deploy import deploy
from gourmet.errors import GourmetError
from gourmet.measure.comparison import (
    Found,
    above,
    all_of,
    goals_by_turn,
    over,
    times_the_throughput,
)
from gourmet.measure.results import LoadSpec, Requirement, Statement
from gourmet.measure.scenario import Arm, Points, Scenario, in_flight, own_server
from gourmet.measure.scenarios.loops import INSIDE, LOOP, STREAMED, answers_agree
from gourmet.measure.task import Addresses
from gourmet.systems import registry
from gourmet.tasks.system_parts import SystemParts

GRAPH: Final = "one graph"
_FEW, _SOME, _MANY = 1, 4, 8

_ABOUT: Final = (
    "First the requests a second that one graph answers under the config of a known student project. Each is "
    "a word: the picture is sent and seen again, and the logits of all places come back. Then whole captions "
    "a second, by a client's loop over that graph and by {inside}, which sees a picture once. Every client "
    "asks again as soon as it is answered."
)
_ABOUT_GPUS: Final = (
    "The requests a second, a word each, that one graph answers on GPUs, under the configs of a known "
    "student project. Every client asks again as soon as it is answered."
)


def scenario(name: str, title: str, system: str, graph: str, inside: str, streamed: str) -> Scenario:
    """`graph` is one of the system's baselines; `inside` and `streamed` take its examples."""
    arms = (
        Arm(GRAPH, None, in_flight(graph, 1, 2, 3, 4), stepped=system),
        Arm(LOOP, None, in_flight(graph, _FEW, _SOME, through="loop"), stepped=system),
        Arm(INSIDE, None, in_flight(inside, _FEW, _SOME, _MANY)),
        Arm(STREAMED, None, in_flight(streamed, _FEW, _SOME, _MANY)),
    )
    return Scenario(
        name,
        title,
        _ABOUT.format(inside=inside),
        arms,
        claims={"with more clients, a picture that is seen once is worth more": _worth_more},
        goals=_goals,
        notes=_bytes,
        check=partial(answers_agree, system),
        server=lambda: _server(system, (graph,), (inside, streamed)),
        page="captioner.md",
    )


def on_gpus(name: str, title: str, system: str, graphs: Mapping[str, int]) -> Scenario:
    """`graphs` are baselines with the most requests at a time that the project's table has."""
    arms = tuple(
        Arm(graph, None, in_flight(graph, *range(1, most + 1)), stepped=system)
        for graph, most in graphs.items()
    )
    server = partial(_server, system, tuple(graphs), ())
    return Scenario(name, title, _ABOUT_GPUS, arms, server=server, needs_gpu=True, page="captioner.md")


@contextmanager
def _server(system: str, graphs: tuple[str, ...], others: tuple[str, ...]) -> Iterator[Addresses]:
    """With the baselines in a repository that is gone afterwards."""
    baselines = SystemParts(system, registry.piece).baselines
    if not baselines:
        raise GourmetError(f"the system {system!r} has no baselines.py")
    with TemporaryDirectory() as folder:
        deployment = baselines.open(repository.DEFAULT)
        for graph in graphs:
            deploy(deployment, graph, Path(folder))
        with own_server((repository.DEFAULT, Path(folder)), (*graphs, *others)) as addresses:
            yield addresses


def _worth_more(points: Points) -> Found:
    few, some = (
        times_the_throughput(points.get(INSIDE, level), points.get(LOOP, level)) for level in (_FEW, _SOME)
    )
    found = [points.get(arm, level) for arm in (LOOP, INSIDE) for level in (_FEW, _SOME)]
    rates = over(found, lambda p: f"{p.rows_per_s.value:.2f}/s", lambda p: p.name)
    return all_of(above(some, few.value)), rates


def _goals(points: Points) -> list[Requirement]:
    def ratio(level: int, wanted: float) -> list[Requirement]:
        rates = [
            [point.rows_per_s.value for point in points.turns(arm, LoadSpec("", level))]
            for arm in (INSIDE, LOOP)
        ]
        return goals_by_turn(f"{INSIDE} ÷ {LOOP}, c={level}", *rates, wanted=wanted)

    return [*ratio(_FEW, 5.0), *ratio(_SOME, 8.0)]


def _bytes(points: Points) -> list[Statement]:
    """Of a caption, both ways; of ours as a stream, whose photos and pieces are JSON."""
    found = [point.transferred for arm in (LOOP, STREAMED) for point in points.of([arm], _FEW)]
    if len(found) < 2 or not all(found):
        return []
    theirs, ours = found
    return [
        Statement(
            f"Between client and Triton a caption takes {theirs / 1e6:.1f} MB by the client's loop and "
            f"{ours / 1e3:.1f} KB as a stream of ours, 1/{theirs / ours:.0f} of it."
        )
    ]
