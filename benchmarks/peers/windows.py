"""What came of one load on one server: every answer checked, the figures of the open window."""

from __future__ import annotations

from dataclasses import dataclass, field

from gourmet.measure.validity import WrongAnswers
from gourmet.pictures.classifier import Floats
from peers import expected
from peers.contenders import Contender
from peers.traffic import ClosedLoop, Recording


@dataclass(frozen=True)
class ContenderWindow:
    """What one arm did with one kind of photos at one concurrency in one turn."""

    arm: str
    photos: str
    concurrency: int
    turn: int
    seconds: float
    latencies_s: tuple[float, ...]
    errors: tuple[str, ...] = ()
    cpu_ms: dict[str, float] = field(default_factory=dict)  # a photo, by group of processes
    memory_mib: dict[str, float] = field(default_factory=dict)
    client_cores: float = 0.0
    foreign_cores: float = 0.0
    how: str = ""

    @property
    def photos_per_s(self) -> float:
        return len(self.latencies_s) / self.seconds


def summarise(
    arm: Contender, photos: str, turn: int, load: ClosedLoop, traffic: Recording, right: Floats
) -> ContenderWindow:
    """Check every answer, count those that came while the window was open; raise WrongAnswers."""
    latencies, errors = [], [why for at, why in traffic.failures if traffic.began <= at <= traffic.ended]
    for seen in traffic.seen:
        inside = traffic.began <= seen.done <= traffic.ended
        if seen.status != 200:
            errors += [f"HTTP {seen.status}: {seen.body[:100].decode(errors='replace')}"] * inside
            continue
        if wrong := expected.complaint(seen.body, right[seen.photo]):
            raise WrongAnswers(f"{arm.words} answers {photos} photo {seen.photo} wrongly: {wrong}")
        if inside:
            latencies.append(seen.done - seen.sent)
    if not latencies and errors:
        raise WrongAnswers(
            f"{arm.words} answered no {photos} photo at {load.concurrency} at a time: {errors[0]}"
        )
    before, after, seconds = traffic.before, traffic.after, traffic.ended - traffic.began
    assert before
    assert after
    spent = {name: after.groups[name] - before.groups[name] for name in after.groups}
    foreign = (after.machine - before.machine) - (after.bench - before.bench)
    return ContenderWindow(
        arm.key,
        photos,
        load.concurrency,
        turn,
        seconds,
        tuple(latencies),
        tuple(errors),
        {name: 1000 * cpu_s / len(latencies) for name, cpu_s in spent.items() if latencies},
        traffic.memory_mib,
        traffic.client_cpu_s / seconds,
        max(0.0, foreign / seconds),
    )
