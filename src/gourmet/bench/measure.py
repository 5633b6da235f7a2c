"""One demand on one served model, measured until it can be believed, or refused with the reason."""

from __future__ import annotations

from dataclasses import replace

from gourmet.bench import our_client, their_client, trust
from gourmet.bench.results import Demand, Point
from gourmet.bench.task import Effort, OnTime, Subject, Target, Task, check_possible
from gourmet.serving.asking import triton


def measure(
    subject: Subject,
    demand: Demand,
    target: Target,
    effort: Effort,
    arm: str = "",
    on_time: OnTime = lambda _: None,
) -> Point:
    """A point that passed every check; raises Untrusted. What was merely disturbed is tried again."""
    check_possible(demand, subject.rows, effort)
    with triton(target.url) as client:
        config = client.get_model_config(demand.model)
    task = Task(subject, demand, target, effort, config, on_time)
    for attempt in range(1, effort.attempts + 1):
        try:
            point = their_client.measure(task) if task.for_perf_analyzer else our_client.measure(task)
        except trust.Disturbed:
            if attempt == effort.attempts:
                raise
        else:
            return replace(point, arm=arm or demand.model, attempts=attempt)
    raise AssertionError("an attempt returns or raises")
