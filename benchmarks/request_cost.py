"""CPU time of the web app for one request: of this checkout, and of another in turns with it.

    .venv/bin/python -P benchmarks/request_cost.py
    .venv/bin/python -P benchmarks/request_cost.py --against ../before    # a checkout with a .venv of its own

Each app runs under gunicorn as `gourmet up` starts it, before the same Triton; a few kept connections send
the same request again and again, and what gunicorn's processes spent is divided by the number of requests.
CPU time suffers less from what else a machine does than throughput, and turns share what is left of that.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gourmet.commands.values import FOUND_FOLDER, POSITIVE
from gourmet.measure.results import median_and_range
from gourmet.measure.scenario import own_server
from gourmet.measure.task import Addresses, MeasureOptions, ask_each
from gourmet.measure.transports import Http, Request, photo_request
from gourmet.pictures.drawn import views
from gourmet.reports.table import markdown
from gourmet.repository import DEFAULT
from gourmet.serving.preflight import free_ports
from gourmet.systems.food11.contract import SYSTEM as FOOD
from harness.run import Contender, Measure, main, run, started
from harness.windows import BenchLoad, BenchWindow, window

HERE: Final = Path(__file__).resolve().parents[1]
_CONNECTIONS: Final = 4
_MODELS: Final = ("food_classifier", "food_classifier_int8", "food_classifier_onnx")


# Method, path and request.
WebRequest = tuple[str, str, Request]


def web_requests() -> dict[str, WebRequest]:
    # Of the size of a small photo that a phone or a page sends: 28 to 32 KB.
    (photo,) = views(FOOD.sample(), 1, size=(400, 300), seed=7, quality=80)
    form = photo_request((), photo)
    photos = {name: ("POST", f"/predict?model={name}", form) for name in _MODELS}
    return {"/healthz": ("GET", "/healthz", Request((), b"")), **photos}


def contender(
    checkout: Path, requests: dict[str, WebRequest], triton: str, options: MeasureOptions
) -> Contender:
    @contextmanager
    def start() -> Iterator[Measure]:
        (port,) = free_ports(1)
        command = [f"{checkout}/.venv/bin/python", "-P", "-m", "gunicorn", "--bind", f"127.0.0.1:{port}"]
        command += ["--config", "python:app.admission.gunicorn_conf", "app:create_app()"]
        env = {"TRITON_SERVER_URL": triton, "WEB_CONCURRENCY": "2"}
        address = f"127.0.0.1:{port}"

        def is_ready() -> None:
            ask_each(Http(address, "/readyz", method="GET"), [Request((), b"")])

        with (
            tempfile.TemporaryDirectory() as folder,
            started(f"the app of {checkout}", command, env, Path(folder), is_ready) as pid,
        ):

            def measure(load: BenchLoad) -> BenchWindow:
                method, path, request = requests[load.inputs]
                wire = Http(address, path, method=method)
                return window(load, wire, [request], lambda *_: None, options, groups={"app": pid})

            yield measure

    return Contender(
        str(checkout), [BenchLoad(str(checkout), name, _CONNECTIONS) for name in requests], start
    )


def costs_ms(windows: Sequence[BenchWindow], checkout: Path, name: str) -> list[float]:
    """Return the CPU ms of a request in each turn; raise if a request failed."""
    mine = [
        window_of_app
        for window_of_app in windows
        if (window_of_app.load.arm, window_of_app.load.inputs) == (str(checkout), name)
    ]
    if errors := [error for window in mine for error in window.errors]:
        raise click.ClickException(f"{checkout}: {name} failed: {errors[0]}")
    return [window.cpu_ms["app"] for window in mine]


@click.command(help=__doc__)
@click.option("--against", type=FOUND_FOLDER, metavar="CHECKOUT", help="Another checkout, with a .venv.")
@click.option("--triton", default="", metavar="HOST:PORT", help="A Triton with the food models.")
@click.option("--rounds", default=7, type=POSITIVE, show_default=True, help="How often all is measured.")
@click.option("--scale", default=1.0, show_default=True, help="Length of a window, in units of 3 seconds.")
def request_cost(against: Path | None, triton: str, rounds: int, scale: float) -> None:
    checkouts = [HERE, against.resolve()] if against else [HERE]
    requests, options = web_requests(), MeasureOptions(window_s=3.0 * scale, windows=1)
    with nullcontext(Addresses(triton)) if triton else own_server((DEFAULT,)) as server:
        apps = [contender(checkout, requests, server.url, options) for checkout in checkouts]
        outcome = run(apps, rounds, lambda _share, words="": click.echo(words, err=True))
    if outcome.left_out:
        raise click.ClickException("; ".join(outcome.left_out.values()))
    rows = []
    for name in requests:
        mine, *others = (costs_ms(outcome.windows, checkout, name) for checkout in checkouts)
        ratios = [[ours / theirs for ours, theirs in zip(mine, other, strict=True)] for other in others]
        rows.append((name, *(median_and_range(values, ".2f") for values in (mine, *others, *ratios))))
    click.echo(f"Python {platform.python_version()}, {os.cpu_count()} CPUs; medians of {rounds} rounds\n")
    headings = ["CPU ms a request", *(checkout.name for checkout in checkouts)]
    click.echo(markdown(headings + ["ratio"] * (len(checkouts) - 1), rows))


if __name__ == "__main__":
    main(request_cost)
