"""Measure a model under one load after another, check each point, and change the model's config meanwhile."""

from __future__ import annotations

import datetime
import itertools
import math
import signal
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from gourmet.bench import server_probe, stats, validity
from gourmet.bench.async_client import LoadGenerator
from gourmet.bench.results import Bench, Evidence, LoadSpec, Point, Rejection, Split, Usage
from gourmet.bench.server_probe import ServerProbe
from gourmet.bench.transports import requests
from gourmet.bench.workload import Addresses, MeasureOptions, Workload, check_possible, wire_for
from gourmet.reports import machine
from gourmet.served.signals import STOPS, handled
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.triton_client.errors import TritonUnreachable
from gourmet.triton_client.model_config import Config

OnStep = Callable[[float, str], None]
Measured = tuple[list[Point], list[Rejection]]

# A request that would wait longer, at the best rate so far, tells nothing but that it waits.
_LONGEST_WAIT_S: Final = 30.0
# For a server that needs longer for an answer than a window lasts.
_LONGEST_WINDOW_S: Final = 10.0
_LOAD_TRIES: Final = 5
# The web app's own readiness question is counted by Triton too.
_OTHERS_BEHIND_THE_APP: Final = 0.02


def run_sweep(
    workload: Workload,
    loads: Iterable[LoadSpec],
    target: Addresses,
    options: MeasureOptions,
    arm: str = "",
    on_step: OnStep = lambda _share, _words: None,
) -> Measured:
    """Measure one load after another; reject each point that fails a check.

    Wrong answers and errors are not a matter of one point: they end the run.
    """
    planned = list(loads)
    points: list[Point] = []
    refused: list[Rejection] = []
    for number, load in enumerate(planned):
        name = f"{arm or load.model} {load}"
        on_step(number / len(planned), name)
        best = max((point.rows_per_s.value for point in points), default=math.inf)
        if load.arrivals == "closed" and load.level * load.batch / best > _LONGEST_WAIT_S:
            words = f"not measured: a request would wait for {load.level * load.batch / best:.0f} s"
            refused.append(Rejection(name, words))
            continue
        try:
            points.append(measure(workload, load, target, options, arm))
        except (validity.Disturbed, validity.ServerOverrun) as exc:
            refused.append(Rejection(name, f"{exc.verdict} ({exc})"))
    return points, refused


def in_turns(arms: Mapping[str, Callable[[], Measured]], turns: int, on_step: OnStep) -> list[Measured]:
    """Measure every arm once a turn, every second turn in the opposite order; return the results by turn.

    A machine that slows down meanwhile favours none.
    """
    results: list[Measured] = [([], []) for _ in range(turns)]
    for turn, (points, refused) in enumerate(results):
        for number, name in enumerate(list(arms)[:: -1 if turn % 2 else 1]):
            on_step((turn + number / len(arms)) / turns, f"turn {turn + 1} of {turns}: {name}")
            measured, rejected = arms[name]()
            points += measured
            refused += rejected
    return results


def measure(
    workload: Workload, load: LoadSpec, target: Addresses, options: MeasureOptions, arm: str = ""
) -> Point:
    """Measure a point that passes every check; raise Untrusted. Repeat a disturbed measurement.

    Where disturbed ones are kept, windows too short for an answer become longer.
    """
    check_possible(load, workload.rows)
    with connect(target.url) as triton:
        config = triton.config(load.model)
    for attempt in itertools.count(1):
        is_last = attempt >= options.attempts
        once = replace(options, keep_disturbed=is_last and options.keep_disturbed)
        try:
            point = _measure_once(workload, load, target, once)
            return replace(point, arm=arm or load.model, attempts=attempt, config=config)
        except validity.Disturbed as exc:
            lengthen = options.keep_disturbed and isinstance(exc, validity.TooShort)
            if lengthen and options.window_s < _LONGEST_WINDOW_S:
                options = replace(options, window_s=4 * options.window_s)
            elif is_last:
                raise
    raise AssertionError("an attempt returns or raises")


def _measure_once(workload: Workload, load: LoadSpec, target: Addresses, options: MeasureOptions) -> Point:
    probe = ServerProbe(target, load, options.own)
    traffic, checks = checked_traffic(workload, load, target, options, probe.record)
    checks += (validity.generator_had_time(traffic.client_cores, keep=options.keep_disturbed),)
    point = point_of(traffic, options, probe.usage(traffic.client_cores), checks)
    requests = traffic.requests_sent / len(traffic.times)
    return replace(
        point,
        split_ms=server_probe.split(probe.counted, point.latency_ms.mean, requests),
        batches=server_probe.batches(probe.counted),
    )


def point_of(
    traffic: LoadGenerator, options: MeasureOptions, usage: Usage, checks: tuple[Evidence, ...]
) -> Point:
    """Return what the load generator measured, with all time as the network's; raise Untrusted."""
    load, stretch, keep = traffic.load, (traffic.began, traffic.ended), options.keep_disturbed
    due, sent, done = traffic.arrays()
    # Open: the requests that fell due while we looked, however long they took.
    ours = traffic.holds(done if load.arrivals == "closed" else due)
    windows = stats.windows(due, done, *stretch, options.windows)
    rates = [window.requests_per_s for window in windows]
    if not ours.any() or not statistics.median(rates):
        most = f"most windows of {options.window_s:g} s saw no answer"
        raise validity.TooShort(f"{most}: use a longer --window")
    took = stats.latency(1000 * (done - due)[ours])
    under_way = stats.in_flight(due, done, *stretch)
    if traffic.failures:
        asked, failed = np.array(traffic.failures).T
        under_way += stats.in_flight(asked, failed, *stretch)
    if load.arrivals == "closed":
        # Rate × latency, with the requests that the measurement cuts through counted by the part inside.
        checks += (validity.littles_law(load.level, under_way, keep=keep),)
    else:
        owed, seconds = int(ours.sum()), traffic.ended - traffic.began
        answered = int(traffic.holds(done).sum())
        lag_ms = float(1000 * (sent - due)[ours].mean())
        checks += (
            validity.generator_was_punctual(lag_ms, took.mean, keep=keep),
            validity.server_kept_up(answered=answered, due=owed, seconds=seconds, keep=keep),
            validity.littles_law(under_way, owed / seconds * took.mean / 1000, keep=keep),
        )
    natural = validity.expected_deviation(
        statistics.fmean(rates) * options.window_s, load.arrivals == "poisson"
    )
    return Point(
        arm="",
        load=load,
        rows_per_s=stats.interval([load.batch * rate for rate in rates], len(rates) / ours.sum()),
        latency_ms=took,
        split_ms=Split(0.0, 0.0, 0.0, 0.0, took.mean),
        batches=(),
        windows=windows,
        requests=int(ours.sum()),
        errors=dict(traffic.errors),
        usage=usage,
        checks=(*checks, validity.steady(rates, options.steadiness + natural)),
        config={},
        stream=stats.stream(due, traffic.pieces, ours, stretch, options.windows),
        transferred=traffic.transferred / len(traffic.times),
    )


def checked_traffic(
    workload: Workload,
    load: LoadSpec,
    target: Addresses,
    options: MeasureOptions,
    mark: Callable[[], None] = lambda: None,
) -> tuple[LoadGenerator, tuple[Evidence, ...]]:
    """Load the server; check every answer, and account for every row."""
    rows, answers = workload.rows, workload.answers
    with connect(target.url) as triton:
        before = triton.total(load.model)
        wire = wire_for(target, load, rows)
        sent_in_turn = itertools.cycle(requests(wire, len(rows), load.batch))
        check = partial(answers.check_reply, wire)
        traffic = LoadGenerator(
            wire, sent_in_turn, load, check, options.warm_up_s, options.measure_s, mark
        ).run()
        answered = len(traffic.times)
        sent, failed = load.batch * traffic.requests_sent, load.batch * sum(traffic.errors.values())
        counted = triton.counted(load.model, before, lambda counts: counts.rows >= sent).rows
    others = _OTHERS_BEHIND_THE_APP if load.through == "app" else 0.0
    return traffic, (
        Evidence("answers", f"{answered} of {answered} right", f"as {answers.source}"),
        validity.few_errors(traffic.errors, answered, options.errors_allowed),
        validity.rows_counted(counted, sent, failed=failed, others_allowed=others),
    )


def bench(
    title: str,
    command: str,
    data: str,
    points: Sequence[Point],
    refused: Sequence[Rejection] = (),
) -> Bench:
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Bench(title, command, when, machine.about(), data, tuple(points), tuple(refused))


class ServedConfigs:
    """The configs of some models, each loaded when it is to be measured; use it by `restored`.

    `usual` has the config that each model had. The caller may replace an entry: it serves afterwards.
    """

    def __init__(self, target: Addresses, models: Iterable[str]) -> None:
        self._target = target
        with connect(target.url) as triton:
            self.usual: dict[str, Config] = {model: triton.config(model) for model in models}
        self._serving = dict(self.usual)

    def serve(self, model: str, config: Config) -> None:
        if config != self._serving[model]:
            self._serving[model] = {}  # which of the two serves is unknown until it is loaded
            load_config(self._target, model, config)
            self._serving[model] = config

    def restore(self) -> None:
        for model, config in self.usual.items():
            self.serve(model, config)


@contextmanager
def restored(target: Addresses, models: Iterable[str]) -> Iterator[ServedConfigs]:
    """Yield the current configs, and restore them afterwards, after Ctrl-C and SIGTERM too."""
    configs = ServedConfigs(target, models)
    try:
        yield configs
    finally:
        # A second Ctrl-C would leave the server with whatever was being tried. Signals reach the main thread.
        is_main = threading.current_thread() is threading.main_thread()
        with handled(dict.fromkeys(STOPS if is_main else (), signal.SIG_IGN)):
            configs.restore()


def load_config(target: Addresses, model: str, config: Mapping[str, Any]) -> None:
    # A server that starts many instances on few cores may be too busy to pick up at once.
    for left in reversed(range(_LOAD_TRIES)):
        try:
            with connect(target.url, LOADS_WITHIN_S) as triton:
                triton.load(model, config)
            return
        except TritonUnreachable:
            if not left:
                raise
