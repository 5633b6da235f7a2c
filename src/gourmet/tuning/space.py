"""Which configs are tried: a coarse grid first, then the neighbours of what was best in it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gourmet.config_change import Change, Config, changed
from gourmet.errors import UsageError
from gourmet.runtime.instances import cpu_threads, instance_count

DELAYS_US: Final = (100, 1000, 5000)
# A preferred size does nothing for rows that nobody waits for, so it is tried with a short wait.
_WAIT_FOR_PREFERRED_US: Final = 1000
_INSTANCES_A_CPU: Final = 2
_INSTANCES_ON_A_GPU: Final = (1, 2, 4)


class NotTunable(UsageError):
    """A model whose config these settings do not describe."""


@dataclass(frozen=True)
class Batching:
    """Triton's dynamic batching: how long the first of a batch waits, and for how many."""

    delay_us: int = 0
    preferred: tuple[int, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A config to try; `threads` is None where instances do not run on the CPU."""

    instances: int
    threads: int | None
    max_batch: int
    batching: Batching | None = None

    def __str__(self) -> str:
        parts = [
            f"{self.instances} × {self.threads} thread" if self.threads else f"{self.instances} instance"
        ]
        parts[0] += "s" if (self.threads or self.instances) > 1 else ""
        parts += [f"max {self.max_batch}"] if self.max_batch else []
        if self.batching:
            parts.append(f"batching {_time(self.batching.delay_us)}")
            wanted = self.batching.preferred
            parts += [f"prefers {'/'.join(str(size) for size in wanted)}"] if wanted else []
        return ", ".join(parts)

    def config(self, running: Config) -> Config:
        """`running` with these settings; whatever else it says stays."""
        start = copy.deepcopy(running)
        start.get("dynamic_batching", {}).pop("preferred_batch_size", None)
        change = Change(self.instances, self.threads, self.max_batch)
        if self.batching is None:
            return changed(start, replace(change, dynamic_batching=False))
        delay, preferred = self.batching.delay_us, self.batching.preferred or None
        return changed(
            start, replace(change, dynamic_batching=True, delay_us=delay, preferred_batches=preferred)
        )


@dataclass(frozen=True)
class Bounds:
    """What may be tried; None leaves it to the machine and the model."""

    instances: tuple[int, ...] | None = None
    threads: tuple[int, ...] | None = None
    max_batches: tuple[int, ...] | None = None
    delays_us: tuple[int, ...] | None = None
    preferred: tuple[int, ...] | None = None
    # Clients may send as many rows as the present config takes: less only where somebody says so.
    may_take_less: bool = True


@dataclass(frozen=True)
class Space:
    """The candidates around a running config; `in_flight` rows at most wait at a time."""

    running: Config
    bounds: Bounds
    cpus: int
    in_flight: int
    batch: int = 1
    p95_ms: float | None = None

    @property
    def present(self) -> Candidate:
        """The running config, as far as a candidate says it."""
        return described(self.running)

    @property
    def on_cpu(self) -> bool:
        return _on_cpu(self.running)

    @property
    def batches(self) -> bool:
        """Whether rows of several requests can go through the network at once, and would ever meet."""
        return self.present.max_batch > 1 and self.in_flight > self.batch

    def notes(self) -> list[str]:
        """What is not tried, and why."""
        said = []
        if self.present.max_batch < 1:
            said.append(
                "batching is not tried: max_batch_size is 0, the network takes one input at a time, and a "
                "queue delay would only be noise"
            )
        elif not self.batches:
            said.append("batching is not tried: with this load no two requests ever wait at the same time")
        if self._keeps_its_queue:
            said.append(
                "no config without dynamic batching is tried: the present one has a queue policy (time-outs, "
                "a longest queue), which Triton has with dynamic batching only"
            )
        if self.batches and not self.bounds.may_take_less and self.bounds.max_batches is None:
            said.append(
                "no smaller max_batch_size is tried: --apply would refuse clients that send more rows; "
                "name the sizes with --max-batches to allow it"
            )
        if not self.on_cpu:
            said.append("threads are not varied: the instances are on a GPU")
        return said

    def coarse(self) -> list[Candidate]:
        """Every layout of instances and threads, with dynamic batching and without."""
        largest = self.present.max_batch
        kinds: list[Batching | None] = []
        if not (self._keeps_its_queue and self.present.max_batch > 0):
            kinds.append(None)
        if self.batches:
            kinds.append(Batching())
        elif self._keeps_its_queue:
            kinds.append(self.present.batching)
        return self._new(Candidate(*layout, largest, kind) for layout in self._layouts() for kind in kinds)

    def fine(self, bases: Sequence[Candidate], tried: Iterable[Candidate]) -> list[Candidate]:
        """Neighbours of the best: longer waits, preferred sizes, smaller batches at most."""
        seen = set(tried)
        return [each for each in self._new(self._neighbours(bases)) if each not in seen]

    def _neighbours(self, bases: Sequence[Candidate]) -> Iterator[Candidate]:
        if not self.batches:
            return
        for base in bases:
            for delay in self._delays():
                yield replace(base, batching=Batching(delay))
            for size in self._sizes(self.bounds.preferred):
                yield replace(base, batching=Batching(_WAIT_FOR_PREFERRED_US, (size,)))
            for size in self._max_batches():
                yield replace(base, max_batch=size, batching=Batching())

    def _new(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        return [each for each in dict.fromkeys(candidates) if each != self.present]

    @property
    def _keeps_its_queue(self) -> bool:
        return "default_queue_policy" in self.running.get("dynamic_batching", {})

    def _layouts(self) -> list[tuple[int, int | None]]:
        bounds = self.bounds
        if not self.on_cpu:
            return [(count, None) for count in bounds.instances or _INSTANCES_ON_A_GPU]
        counts = bounds.instances or _powers_of_two(_INSTANCES_A_CPU * self.cpus)
        if bounds.threads:
            return [(count, threads) for count in counts for threads in bounds.threads]
        shared: list[tuple[int, int | None]] = [(count, max(1, self.cpus // count)) for count in counts]
        # One thread alone: a small network loses more by sharing a row out than it gains.
        return list(dict.fromkeys([*shared, *([(1, 1)] if 1 in counts else [])]))

    def _delays(self) -> tuple[int, ...]:
        delays = self.bounds.delays_us if self.bounds.delays_us is not None else DELAYS_US
        # A wait of half the goal cannot keep it: the row must still be computed.
        most = 500 * self.p95_ms if self.p95_ms is not None else max(delays, default=0)
        return tuple(delay for delay in delays if delay <= most)

    def _sizes(self, given: tuple[int, ...] | None) -> list[int]:
        """Batches that can come about: half and a quarter of what waits at most."""
        together = min(self.present.max_batch, self.in_flight)
        sizes = given if given is not None else (together // 2, together // 4)
        return [
            size for size in dict.fromkeys(sizes) if max(1, self.batch - 1) < size <= self.present.max_batch
        ]

    def _max_batches(self) -> list[int]:
        if self.bounds.max_batches is None and not self.bounds.may_take_less:
            return []
        if self.bounds.max_batches is not None:
            return [size for size in self.bounds.max_batches if size >= self.batch]
        return self._sizes(None)


def space(running: Config, bounds: Bounds, **more: Any) -> Space:
    """The space around a running config; raises NotTunable."""
    name = running.get("name", "the model")
    for kind, why in (
        (
            "ensemble_scheduling",
            "an ensemble has no instances of its own: tune the models that it is made of",
        ),
        (
            "sequence_batching",
            "a model with sequences keeps each on its instance: its batching is another one",
        ),
    ):
        if kind in running:
            raise NotTunable(f"{name} cannot be tuned here: {why}")
    if running.get("model_transaction_policy", {}).get("decoupled"):
        raise NotTunable(f"{name} cannot be tuned here: it is decoupled, and answers as often as it likes")
    return Space(running, bounds, **more)


def described(config: Config) -> Candidate:
    largest = int(config.get("max_batch_size", 0))
    batching = config.get("dynamic_batching")
    return Candidate(
        instance_count(config),
        cpu_threads(config) if _on_cpu(config) else None,
        largest,
        None if batching is None else _batching(batching, largest),
    )


def _on_cpu(config: Config) -> bool:
    groups = config.get("instance_group") or [{}]
    return all(group.get("kind") != "KIND_GPU" for group in groups)


def _batching(config: Config, largest: int) -> Batching:
    preferred = tuple(int(size) for size in config.get("preferred_batch_size", ()))
    # Where a config names none, Triton fills in the largest batch for some backends.
    named = () if preferred == (largest,) else preferred
    return Batching(int(config.get("max_queue_delay_microseconds", 0)), named)


def _powers_of_two(most: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def _time(us: int) -> str:
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us} µs"
