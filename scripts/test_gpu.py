"""Measure what docs/gpu.md reports, in a few minutes, and print it in Markdown.

    python scripts/test_gpu.py --into report.md           # make test-gpu
    python scripts/test_gpu.py --cpu                      # the same without a GPU, to try the script itself

The network is run without a server first, then both kinds of food model by a Triton of the wheel, which is
started as `gourmet up` starts it, on free ports. All answers are compared with those of ONNX Runtime on the
CPU, also under load.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import onnxruntime as ort

from gourmet.bench.async_client import LoadGenerator
from gourmet.bench.inputs import InputRows, rows_of
from gourmet.bench.results import LoadSpec
from gourmet.bench.server_probe import CpuMeter
from gourmet.bench.sweep import load_config
from gourmet.bench.transports import RawReply, Request, TritonHttp, requests
from gourmet.bench.workload import Addresses
from gourmet.repository.config_change import Change, changed
from gourmet.repository.models import DEFAULT_REPOSITORY, read_config
from gourmet.repository.versions import newest_version
from gourmet.served.batches import Feeds, padded
from gourmet.served.instances import (
    CONFIG_NAME_ENV,
    FP32,
    INT8,
    PRECISION_PARAMETER,
    parameter,
)
from gourmet.stack.connect import connect
from gourmet.stack.preflight import free_ports
from gourmet.stack.triton_server import TritonOptions, TritonServer
from gourmet.systems import food11
from gourmet.systems.food11.contract import SYSTEM
from gourmet.triton_client.model_config import as_json, summary

MODEL: Final = "food_classifier"
ONNX: Final = "food_classifier_onnx"
FOLDER: Final = newest_version(DEFAULT_REPOSITORY / MODEL)
TEMPERATURE: Final = float(parameter(as_json(read_config(DEFAULT_REPOSITORY / MODEL)), "temperature") or 1)
PACKAGES: Final = ("nvidia-pytriton", "onnxruntime-gpu", "onnxruntime", "torch", "nvidia-cudnn-cu13", "numpy")
SIZES: Final = (1, 16)
LEVELS: Final = (1, 16, 64)
MEASURED_S: Final = 2.0
# In TF32 and fp16 answers differ from the CPU's by thousandths; another picture's differ by far more.
ALLOWED: Final = 0.03
OUTPUTS: Final = {MODEL: "PROBABILITIES", ONNX: "output"}
SPAWN: Final = multiprocessing.get_context("spawn")  # not forked off a process that uses the GPU

Run = Callable[[Any, Any], Any]  # pixels and rows of the same pictures → logits or probabilities


class Report:
    """Lines of Markdown, written at once, so that an interrupted run shows its results so far."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._lines = path, list[str]()

    def say(self, *lines: str) -> None:
        self._lines += lines
        click.echo("\n".join(lines))
        if self._path:
            self._path.write_text("\n".join(self._lines) + "\n")

    def row(self, *cells: object) -> None:
        self.say(f"| {' | '.join(map(str, cells))} |")

    def table(self, *headings: str) -> None:
        self.say("")
        self.row(*headings)
        self.say("|---" * len(headings) + "|")


@dataclass
class Pictures:
    """Photos, drawn views of one, and ONNX Runtime's answers on the CPU."""

    files: list[bytes]
    pixels: Any
    rows: Any
    by_fp32: Any
    by_int8: Any

    @classmethod
    def made(cls) -> Pictures:
        samples = Path(food11.__file__).parent / "samples"
        files = [path.read_bytes() for path in sorted(samples.glob("*.jpg"))]
        files += SYSTEM.examples(32 - len(files), 5)
        pixels = np.stack([SYSTEM.pixels(photo) for photo in files])
        rows = SYSTEM.tensor(pixels, "FP32")
        runs = (by_onnx("model.onnx", "CPU"), by_onnx("model_int8.onnx", "CPU"))
        fp32, int8 = (
            np.concatenate([run(pixels[[at]], rows[[at]]) for at in range(len(rows))]) for run in runs
        )
        return cls(files, pixels, rows, fp32, int8)


def calibrated(values: Any, temperature: float = TEMPERATURE) -> Any:
    """Return probabilities, from logits or from the probabilities of the int8 file."""
    is_logits = values.min() < 0 or values.max() > 1 + 1e-3
    outputs = {"output" if is_logits else "probabilities": values.astype(np.float32)}
    return SYSTEM.scores_from(outputs, temperature)[0]


# --- the network without a server


def by_onnx(file: str, provider: str, options: dict[str, str] | None = None, rows: int = 0) -> Run:
    wanted = f"{provider}ExecutionProvider"
    providers: list[Any] = [(wanted, options or {}), "CPUExecutionProvider"][: 1 + (provider != "CPU")]
    session = ort.InferenceSession(str(FOLDER / file), providers=providers)
    if session.get_providers()[0] != wanted:
        raise RuntimeError(f"it runs by {session.get_providers()}")
    name, takes_pixels = session.get_inputs()[0].name, "int8" in file

    def run(feeds: Feeds, _wanted: Any) -> Any:
        return session.run(None, feeds)

    run_rows = padded(run, rows) if rows else run
    return lambda pixels, tensors: run_rows({name: pixels if takes_pixels else tensors}, ())[0]


def ways(on_gpu: bool) -> dict[str, Callable[[], Run]]:
    def cuda(**options: Any) -> Run:
        return by_onnx("model.onnx", "CUDA", **options)

    runs: dict[str, Callable[[], Run]] = {
        "ONNX Runtime, CPU, int8": lambda: by_onnx("model_int8.onnx", "CPU"),
        "ONNX Runtime, CPU, fp32": lambda: by_onnx("model.onnx", "CPU"),
    }
    if on_gpu:
        runs |= {
            "ONNX Runtime, CUDA, TF32": cuda,
            "ONNX Runtime, CUDA, fp32 without TF32": lambda: cuda(options={"use_tf32": "0"}),
            "ONNX Runtime, CUDA, TF32, always 16 rows": lambda: cuda(rows=16),
        }
    return runs


def of_way(name: str, on_gpu: bool, pictures: Pictures) -> tuple[list[float], Any]:
    """Return the median ms of each size, and the answers in batches of 16."""
    run = ways(on_gpu)[name]()
    medians = []
    for size in SIZES:
        took, until = list[float](), time.perf_counter() + 1.0
        while len(took) < 6 or time.perf_counter() < until:
            began = time.perf_counter()
            run(pictures.pixels[:size], pictures.rows[:size])
            took.append(1e3 * (time.perf_counter() - began))
        medians.append(float(np.median(took[1:])))
    parts = [slice(at, at + 16) for at in range(0, len(pictures.rows), 16)]
    return medians, np.concatenate([run(pictures.pixels[part], pictures.rows[part]) for part in parts])


def without_server(report: Report, pictures: Pictures, on_gpu: bool) -> None:
    report.say("", "## The network without a server")
    sizes = (f"{size} row{'s' if size > 1 else ''}, ms" for size in SIZES)
    report.table("what runs it", *sizes, "largest difference of a probability")
    right = calibrated(pictures.by_fp32)
    for name in ways(on_gpu):
        with ProcessPoolExecutor(1, SPAWN) as process:  # a crash ends only that process
            try:
                medians, answers = process.submit(of_way, name, on_gpu, pictures).result()
            except Exception as exc:
                report.row(name, f"failed: {type(exc).__name__}: {str(exc)[:300]}")
            else:
                difference = abs(calibrated(answers) - right).max()
                report.row(name, *(f"{median:.1f}" for median in medians), f"{difference:.2g}")


# --- both kinds of food model by Triton


def arms(on_gpu: bool) -> Iterable[tuple[str, Change]]:
    """Yield models and the changes of their configs."""
    yield from ((MODEL, Change()), (ONNX, Change()))
    if not on_gpu:
        return
    batched, alone = Change(dynamic_batching=True, preferred_batches=(16,)), Change(dynamic_batching=False)
    for model in (MODEL, ONNX):
        precision = INT8 if model == MODEL else None
        yield model, Change(instances=(os.cpu_count() or 2) // 2, cpu=True, precision=precision).over(alone)
        yield model, Change(instances=4).over(alone)
        yield from ((model, Change(instances=count).over(batched)) for count in (1, 4, 8))


def by_triton(report: Report, pictures: Pictures, on_gpu: bool, log: Path) -> None:
    report.say("", "## Both food models by Triton", "")
    os.environ[CONFIG_NAME_ENV] = profile = "gpu" if on_gpu else ""
    http, grpc, metrics = free_ports(3)
    extra = (f"--model-config-name={profile}",) if profile else ()
    options = TritonOptions(
        (DEFAULT_REPOSITORY,), http_port=http, grpc_port=grpc, metrics_port=metrics, extra=extra
    )
    target = Addresses(options.http_url)
    with log.open("a") as lines, TritonServer(options, lambda line: print(line, file=lines)) as server:
        server.wait_until_live(180)
        with connect(target.url) as client:
            usual = {model: client.config(model) for model in (MODEL, ONNX)}
        # A config for GPUs names no precision; only one that is named can be changed.
        usual[MODEL]["parameters"].setdefault(PRECISION_PARAMETER, {"string_value": FP32})
        clients = max(1, (os.cpu_count() or 2) // 3)
        with SPAWN.Pool(clients, keep, [target.url, pictures.files]) as pool:

            def ask(model: str, change: Change, level: int) -> tuple[int, int, float, list[str]]:
                """Return the number of answers, of wrong ones, the largest difference, and the errors."""
                by_int8 = model == MODEL and (change.cpu or not on_gpu)
                right = pictures.by_int8 if by_int8 else pictures.by_fp32
                expected = calibrated(right, TEMPERATURE if model == MODEL else 1.0)
                begin = time.time() + 0.2
                shares = [len(range(number, level, clients)) for number in range(clients)]
                jobs = [(model, expected, share, begin) for share in shares if share]
                counts, wrong, worst, errors = zip(*pool.starmap(load, jobs, chunksize=1), strict=True)
                return sum(counts), sum(wrong), max(worst), [*chain.from_iterable(errors)]

            report.table("model", "config", *(f"{level} clients" for level in LEVELS), "cores", "answers")
            for model, change in arms(on_gpu):
                config = changed(usual[model], change)
                try:
                    if change:
                        load_config(target, model, config)
                    ask(model, change, LEVELS[-1])  # of each size of batch, a GPU's first run is slow
                    results = []
                    for level in LEVELS:
                        meter = CpuMeter({"Triton": server.pid})
                        meter.record()
                        results.append(ask(model, change, level))
                        meter.record()
                    counts, wrong, worst, errors = zip(*results, strict=True)
                    answers = f"{sum(wrong)} WRONG" if any(wrong) else f"all right, ±{max(worst):.2g}"
                    if failed := [*chain.from_iterable(errors)]:
                        answers += f"; {len(failed)} failed: {failed[0]}"
                    rates = [f"{count / MEASURED_S:.0f}" for count in counts]
                    cells = (*rates, f"{meter.cores('Triton'):.1f}", answers)
                except Exception as exc:
                    cells = (f"failed: {type(exc).__name__}: {exc}",)
                report.row(model, summary(config), *cells)


# --- the clients, in processes of their own

_kept: list[Any] = []


def keep(url: str, files: list[bytes]) -> None:
    """Keep the address and the pictures in a process of the clients."""
    _kept.extend((url, files))


@cache
def rows_of_model(model: str) -> InputRows:
    url, files = _kept
    with connect(url) as triton:
        return rows_of(triton.describe(model), SYSTEM, files, "the pictures")


def load(model: str, expected: Any, level: int, begin: float) -> tuple[int, int, float, list[str]]:
    """Run `level` clients in one process, with the load of `gourmet.bench`; compare each answer."""
    rows, off = rows_of_model(model), list[float]()
    wire = TritonHttp(_kept[0], model, rows)

    def check_reply(request: Request, reply: RawReply) -> None:
        probabilities = calibrated(wire.read_reply(reply)[OUTPUTS[model]], 1.0)
        off.append(float(abs(probabilities - expected[list(request.rows)]).max()))

    everything = cycle(requests(wire, len(rows), 1))
    time.sleep(max(0.0, begin - time.time()))
    traffic = LoadGenerator(wire, everything, LoadSpec(model, level), check_reply, measure_s=MEASURED_S).run()
    wrong = sum(difference > ALLOWED for difference in off)
    return len(traffic.arrays()[0]), wrong, max(off, default=0.0), list(traffic.errors)


def cards() -> list[str]:
    """Return the GPUs' names, drivers, MiB and watts; none where there is no nvidia-smi."""
    query = ["--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


@click.command(help=__doc__.splitlines()[0])
@click.option("--cpu", is_flag=True, help="Run without a GPU, to try the script itself.")
@click.option("--into", type=click.Path(path_type=Path), metavar="FILE", help="Write the report here too.")
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Write Triton's log here.",
    show_default=True,
    default=Path(tempfile.gettempdir(), "test-gpu-triton.log"),
)
def main(cpu: bool, into: Path | None, log: Path) -> None:
    if not (names := cards()) and not cpu:
        raise click.UsageError("nvidia-smi shows no GPU here; --cpu tries the script itself")
    report, began = Report(into), time.monotonic()
    installed = {package.name: package.version for package in distributions()}
    report.say(
        "# On the CPU" if cpu else "# On a GPU",
        "",
        f"- cards: {'; '.join(names) or 'none'} (name, driver, MiB, watts)",
        f"- machine: {platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        f"- packages: {', '.join(f'{name} {installed.get(name)}' for name in PACKAGES)}",
    )
    pictures = Pictures.made()
    without_server(report, pictures, not cpu)
    by_triton(report, pictures, not cpu, log)
    report.say("", f"It took {time.monotonic() - began:.0f} s.", "")


if __name__ == "__main__":
    main()
