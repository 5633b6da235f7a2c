"""Options that the verbs of `gourmet bench` share, as the values that the library takes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gourmet.bench.task import Effort, Target

F = TypeVar("F", bound=Callable[..., Any])

_MOST_STEPS: Final = 100


class Range(click.ParamType[tuple[float, ...]]):
    """Levels of load: 8, 1:8, 1:16:5 (start, end, step) or 1,4,16."""

    name = "N|N:N[:N]|N,N"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        try:
            numbers = [float(part) for part in re.split("[:,]", text)]
        except ValueError:
            numbers = []
        if not numbers or min(numbers) <= 0 or (":" in text and ("," in text or len(numbers) > 3)):
            self.fail(f"{text!r} is no range: write it like 8, 1:8, 1:16:5 or 1,4,16", param, ctx)
        if ":" not in text:
            return tuple(numbers)
        start, end, step = (*numbers, 1.0)[:3]
        count = int((end - start) / step + 1e-9) + 1
        if end < start or count > _MOST_STEPS:
            self.fail(f"{text!r} has {max(0, count)} steps: 1 to {_MOST_STEPS} can be measured", param, ctx)
        return tuple(start + step * at for at in range(count))


class Sizes(click.ParamType[tuple[int, int]]):
    """Width and height: 400x300."""

    name = "WxH"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+)[x×](\d+)", str(value))
        if not found:
            self.fail(f"{value!r} is no size: write it like 400x300", param, ctx)
        return int(found[1]), int(found[2])


def target_options(command: F) -> F:
    """Where to ask; the command gets a `target`."""

    @click.option(
        "--url",
        envvar="TRITON_SERVER_URL",
        default="localhost:8000",
        show_default=True,
        help="Triton's HTTP.",
    )
    @click.option("--grpc-url", default="localhost:8001", show_default=True, help="Triton's gRPC.")
    @click.option("--app-url", default="localhost:5000", show_default=True, help="The web app.")
    @functools.wraps(command)
    def with_target(*args: Any, url: str, grpc_url: str, app_url: str, **rest: Any) -> Any:
        return command(*args, target=Target(url, grpc_url, app_url), **rest)

    return with_target  # type: ignore[return-value]


def effort_options(command: F) -> F:
    """How long to look and what to put up with; the command gets an `effort`."""

    @click.option("--window", "window_s", default=1.0, show_default=True, help="Seconds a window.")
    @click.option("--windows", default=5, show_default=True, type=click.IntRange(2), help="How many.")
    @click.option("--warm-up", "warm_up_s", default=1.0, show_default=True, help="Seconds not measured.")
    @click.option("--attempts", default=3, show_default=True, type=click.IntRange(1), help="When disturbed.")
    @click.option("--steady", default=10.0, show_default=True, help="Percent by which windows may differ.")
    @click.option(
        "--allow-errors", default=0.0, show_default=True, help="Percent of requests; counted apart."
    )
    @click.option(
        "--client",
        type=click.Choice(["auto", "perf-analyzer", "gourmet"]),
        default="auto",
        show_default=True,
        help="auto: perf_analyzer for closed loops at Triton, ours for the rest.",
    )
    @functools.wraps(command)
    def with_effort(
        *args: Any,
        window_s: float,
        windows: int,
        warm_up_s: float,
        attempts: int,
        steady: float,
        allow_errors: float,
        client: Any,
        **rest: Any,
    ) -> Any:
        effort = Effort(window_s, windows, warm_up_s, attempts, steady / 100, allow_errors / 100, client)
        return command(*args, effort=effort, **rest)

    return with_effort  # type: ignore[return-value]


def output_options(command: F) -> F:
    """Where the run is kept and how it is shown."""
    save = click.option(
        "--save",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for bench.json, bench.csv and index.html.  [default: a new one under runs/bench]",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print the saved JSON, for scripts.")
    return save(as_json(command))
