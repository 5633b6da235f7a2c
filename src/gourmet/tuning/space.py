"""The configs to try: a coarse grid first, then the neighbours of the best.

Each is a change to the running config that sets all that is varied; `threads` is None on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gourmet.client.model_config import Config
from gourmet.errors import UsageError
from gourmet.repository.config_change import Change
from gourmet.runtime.instances import cpu_threads, instance_count
from gourmet.tuning.results import TuneRequest

_DELAYS_US: Final = (100, 1000, 5000)
# Without a wait a preferred size has no effect, so it is tried with a short one.
_WAIT_FOR_PREFERRED_US: Final = 1000
_INSTANCES_A_CPU: Final = 2
_INSTANCES_ON_A_GPU: Final = (1, 2, 4)


@dataclass(frozen=True)
class Space:
    """The candidates around a running config."""

    running: Config
    request: TuneRequest

    def __post_init__(self) -> None:
        decoupled = self.running.get("model_transaction_policy", {}).get("decoupled")
        if decoupled or {"ensemble_scheduling", "sequence_batching"} & self.running.keys():
            raise UsageError(
                f"{self.request.model} cannot be tuned here: ensembles (tune the models they are made of), "
                "models with sequences and decoupled models are not"
            )

    @property
    def largest(self) -> int:
        return int(self.running.get("max_batch_size", 0))

    @property
    def on_cpu(self) -> bool:
        return all(group.get("kind") != "KIND_GPU" for group in self.running.get("instance_group", []))

    @property
    def present(self) -> Change:
        """The running config, in the settings that a candidate has."""
        config = self.running
        threads = cpu_threads(config) if self.on_cpu else None
        layout = Change(instance_count(config), threads, self.largest, dynamic_batching=False)
        if (batching := config.get("dynamic_batching")) is None:
            return layout
        preferred = tuple(int(size) for size in batching.get("preferred_batch_size", ()))
        # Where a config names none, Triton fills in the largest batch for some backends.
        named = () if preferred == (self.largest,) else preferred
        return _batching(layout, int(batching.get("max_queue_delay_microseconds", 0)), *named)

    @property
    def batches(self) -> bool:
        """Return True if rows of several requests can share an execution under some load."""
        return self.largest > 1 and self.request.heaviest >= 2

    @property
    def keeps_its_queue(self) -> bool:
        return "default_queue_policy" in self.running.get("dynamic_batching", {})

    @property
    def takes_as_many(self) -> bool:
        """True if candidates must accept as many rows as the current config: clients may send them."""
        return self.request.apply and self.request.max_batches is None

    def coarse(self) -> list[Change]:
        """Return every layout of instances and threads, with and without dynamic batching."""
        changes = []
        for instances, threads in self._layouts():
            layout = replace(self.present, instances=instances, threads=threads)
            if not self.keeps_its_queue:
                changes.append(replace(layout, dynamic_batching=False, delay_us=None, preferred_batches=None))
            elif not self.batches:
                changes.append(layout)
            if self.batches:
                changes.append(_batching(layout))
        return self._new(changes)

    def fine(self, bases: Iterable[Change], tried: Iterable[Change]) -> list[Change]:
        """Return neighbours of the best: longer delays, preferred sizes, smaller maximum batches."""
        request, changes = self.request, []
        delays = _DELAYS_US if request.delays_us is None else request.delays_us
        if request.p95_ms is not None:
            # A wait of half the goal cannot keep it: the row must still be computed.
            delays = tuple(delay_us for delay_us in delays if delay_us <= 500 * request.p95_ms)
        # Batches that can come about: half and a quarter of what waits at most.
        together = min(self.largest, int(request.heaviest) * request.batch)
        usual = (together // 2, together // 4)
        largest = request.max_batches or (() if self.takes_as_many else self._sizes(usual))
        for base in bases if self.batches else ():
            changes += [_batching(base, delay) for delay in delays]
            for size in self._sizes(usual if request.preferred is None else request.preferred):
                changes.append(_batching(base, _WAIT_FOR_PREFERRED_US, size))
            changes += [replace(_batching(base), max_batch=size) for size in largest]
        return self._new(changes, tried)

    def _new(self, changes: Iterable[Change], tried: Iterable[Change] = ()) -> list[Change]:
        known = {self.present, *tried}
        return [change for change in dict.fromkeys(changes) if change not in known]

    def _layouts(self) -> list[tuple[int, int | None]]:
        request, cpus = self.request, self.request.cpus
        if not self.on_cpu:
            return [(count, None) for count in request.instances or _INSTANCES_ON_A_GPU]
        counts = request.instances or [2**power for power in range((_INSTANCES_A_CPU * cpus).bit_length())]
        if request.threads:
            return [(count, threads) for count in counts for threads in request.threads]
        shared: list[tuple[int, int | None]] = [(count, max(1, cpus // count)) for count in counts]
        # One thread alone: a small network loses more by sharing a row out than it gains.
        return list(dict.fromkeys([*shared, *([(1, 1)] if 1 in counts else [])]))

    def _sizes(self, sizes: Sequence[int]) -> list[int]:
        """Return the sizes above one that every request of the load fits into."""
        return [size for size in dict.fromkeys(sizes) if max(2, self.request.batch) <= size <= self.largest]


def _batching(base: Change, delay_us: int = 0, *preferred: int) -> Change:
    return replace(base, dynamic_batching=True, delay_us=delay_us, preferred_batches=preferred)
