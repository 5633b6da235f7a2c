"""Run the checks that need a GPU, in a few minutes, and write a report in Markdown.

    python scripts/test_gpu.py --into report.md           # make test-gpu
    python scripts/test_gpu.py --cpu --budget 60          # the same without a GPU, to try the script itself

The network is run without a server first, then both kinds of food model by a Triton of the wheel, which is
started as `gourmet up` starts it, on free ports. All answers are compared with those of ONNX Runtime on the
CPU, also under load. What does not fit into the budget is left out, and the report says so.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import platform
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import onnxruntime as ort
import psutil

from gourmet.client.model_config import as_json
from gourmet.measure.async_client import Load
from gourmet.measure.inputs import InputRows, rows_of
from gourmet.measure.results import LoadSpec
from gourmet.measure.server_probe import cpu_s, spent_s, tree
from gourmet.measure.sweep import load_config
from gourmet.measure.task import Addresses
from gourmet.measure.transports import RawReply, Request, TritonHttp, requests
from gourmet.repository import DEFAULT, read_config
from gourmet.runtime.batches import Feeds, padded
from gourmet.runtime.instances import CONFIG_NAME_ENV, parameter
from gourmet.serving.connect import connect
from gourmet.serving.preflight import free_ports
from gourmet.serving.triton_server import TritonOptions, TritonServer
from gourmet.systems import food11
from gourmet.systems.food11.contract import SYSTEM

MODEL: Final = "food_classifier"
ONNX: Final = "food_classifier_onnx"
PACKAGES: Final = (
    "nvidia-pytriton",
    "onnxruntime-gpu",
    "onnxruntime",
    "torch",
    "nvidia-cudnn-cu13",
    "numpy",
    "pillow",
)
SIZES: Final = (1, 4, 16)
MIXED: Final = (1, 16, 7)
LEVELS: Final = (1, 16, 64)
MEASURED_S: Final = 2.0
# In TF32 and fp16 answers differ from the CPU's by thousandths; another picture's differ by far more.
ALLOWED: Final = 0.03
OUTPUTS: Final = {MODEL: "PROBABILITIES", ONNX: "output"}


@dataclass
class Report:
    """Lines of Markdown, printed at once, so that an interrupted run shows its results so far."""

    path: Path | None
    ends: float
    lines: list[str] = field(default_factory=list)

    def say(self, *lines: str) -> None:
        self.lines += lines
        click.echo("\n".join(lines))
        if self.path:
            self.path.write_text("\n".join(self.lines) + "\n")

    def table(self, *headings: str) -> None:
        self.say("", f"| {' | '.join(headings)} |", "|---" * len(headings) + "|")

    def row(self, *cells: object) -> None:
        self.say(f"| {' | '.join(map(str, cells))} |")

    def left_s(self) -> float:
        return self.ends - time.monotonic()


def smi(what: str, kind: str = "gpu") -> list[str]:
    """The lines of an nvidia-smi query; none where there is no GPU."""
    try:
        command = ["nvidia-smi", f"--query-{kind}={what}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


@dataclass
class Pictures:
    """Photos, drawn views of one, and ONNX Runtime's fp32 answers on the CPU."""

    files: list[bytes]
    pixels: Any
    rows: Any
    logits: Any
    by_int8: Any
    temperature: float

    @classmethod
    def made(cls, folder: Path, temperature: float) -> Pictures:
        files = [
            path.read_bytes() for path in sorted((Path(food11.__file__).parent / "samples").glob("*.jpg"))
        ]
        files += SYSTEM.examples(32 - len(files), 5)
        pixels = np.stack([SYSTEM.pixels(photo) for photo in files])
        rows = SYSTEM.tensor(pixels, "FP32")
        logits, by_int8 = (
            np.concatenate(
                [session.run(None, {session.get_inputs()[0].name: row[None]})[0] for row in inputs]
            )
            for name, inputs in (("model.onnx", rows), ("model_int8.onnx", pixels))
            for session in [ort.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])]
        )
        return cls(files, pixels, rows, logits, by_int8, temperature)

    def expected(self, model: str, int8: bool) -> Any:
        """Return the right answers of a model to the pictures, as probabilities."""
        return calibrated(self.by_int8 if int8 else self.logits, self.temperature if model == MODEL else 1.0)


def calibrated(values: Any, temperature: float) -> Any:
    """Return probabilities, from logits or from the probabilities of the int8 file."""
    is_logits = values.min() < 0 or values.max() > 1 + 1e-3
    return SYSTEM.answers(
        {"output" if is_logits else "probabilities": values.astype(np.float32)}, temperature
    )[0]


# --- the networks without a server


def alone(report: Report, pictures: Pictures, version_folder: Path, on_gpu: bool) -> None:
    report.say("", "## The network without a server", "")
    report.say(
        f"{len(pictures.rows)} pictures; ms are medians, the first run of a size in brackets. The answers of "
        "batches of 16 are compared with those of ONNX Runtime on the CPU, in fp32, a picture at a time."
    )
    report.table(
        "what runs it",
        *(f"{size} rows, ms" for size in SIZES),
        "rows/s at 16",
        "1, 16 and 7 rows by turns, ms",
        "largest difference of a probability",
        "same class",
    )
    executor = one_process()
    for name in kinds(version_folder, on_gpu):
        if report.left_s() < 60:
            report.row(name, "left out: no time")
            continue
        try:
            figures, mixed, answers = executor.submit(of_kind, name, version_folder, on_gpu, pictures).result(
                60
            )
        except Exception as exc:
            report.row(name, f"failed: {type(exc).__name__}: {str(exc)[:300]}")
            executor.shutdown(wait=False, cancel_futures=True)
            executor = one_process()
            continue
        answers, right = (calibrated(values, pictures.temperature) for values in (answers, pictures.logits))
        same = int((answers.argmax(1) == right.argmax(1)).sum())
        cells = [f"{last:.2f} ({first:.0f})" for first, last in figures]
        rate = f"{16e3 / figures[-1][1]:.0f}"
        report.row(
            name,
            *cells,
            rate,
            f"{mixed:.1f}",
            f"{abs(answers - right).max():.2g}",
            f"{same} of {len(right)}",
        )
    executor.shutdown()


def one_process() -> ProcessPoolExecutor:
    """Return a pool of one process: a crash ends only that process."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def of_kind(
    name: str, folder: Path, on_gpu: bool, pictures: Pictures
) -> tuple[list[tuple[float, float]], float, Any]:
    """Return first and median ms of each size, the mean over mixed sizes, and answers in batches of 16."""
    run = kinds(folder, on_gpu)[name]()
    figures = [timed(run, pictures, size) for size in SIZES]
    answers = [run(pictures, slice(at, at + 16)) for at in range(0, len(pictures.rows), 16)]
    took = []
    for _ in range(2):  # what is looked for once for each size is there the second time
        began = time.perf_counter()
        for size in MIXED:
            run(pictures, slice(0, size))
        took.append(1e3 * (time.perf_counter() - began) / len(MIXED))
    return figures, took[1], np.concatenate(answers)


def timed(run: Callable[[Pictures, slice], Any], pictures: Pictures, size: int) -> tuple[float, float]:
    took = []
    until = time.perf_counter() + 1.0
    while len(took) < 6 or (time.perf_counter() < until and len(took) < 300):
        at = (len(took) * size) % (len(pictures.rows) - size + 1)
        began = time.perf_counter()
        run(pictures, slice(at, at + size))
        took.append(1e3 * (time.perf_counter() - began))
    return took[0], float(np.median(took[1:] or took))


def kinds(folder: Path, on_gpu: bool) -> dict[str, Callable[[], Callable[[Pictures, slice], Any]]]:
    cuda = {"device_id": "0"}
    runs = {
        "ONNX Runtime, CPU, int8": lambda: by_onnx(
            folder / "model_int8.onnx", "CPUExecutionProvider", {}, np.uint8
        ),
        "ONNX Runtime, CPU, fp32": lambda: by_onnx(folder / "model.onnx", "CPUExecutionProvider", {}),
    }
    if on_gpu:
        gpu = "CUDAExecutionProvider"
        runs |= {
            "ONNX Runtime, CUDA, TF32 (its default)": lambda: by_onnx(folder / "model.onnx", gpu, cuda),
            "ONNX Runtime, CUDA, TF32, algorithms by heuristic": lambda: by_onnx(
                folder / "model.onnx", gpu, {**cuda, "cudnn_conv_algo_search": "HEURISTIC"}
            ),
            "ONNX Runtime, CUDA, fp32 without TF32": lambda: by_onnx(
                folder / "model.onnx", gpu, {**cuda, "use_tf32": "0"}
            ),
            "ONNX Runtime, CUDA, TF32, always 16 rows": lambda: by_onnx(
                folder / "model.onnx", gpu, cuda, rows=16
            ),
            "ONNX Runtime, CUDA, the int8 file": lambda: by_onnx(
                folder / "model_int8.onnx", gpu, cuda, np.uint8
            ),
        }
    if (folder / "model.pt").exists():
        runs["torch, GPU, fp32" if on_gpu else "torch, CPU, fp32"] = lambda: by_torch(
            folder / "model.pt", on_gpu
        )
    return runs


def by_onnx(
    file: Path, provider: str, options: dict[str, str], kind: type = np.float32, rows: int = 0
) -> Callable[[Pictures, slice], Any]:
    providers: list[Any] = [(provider, options)] + (["CPUExecutionProvider"] if provider[0:2] == "CU" else [])
    session = ort.InferenceSession(str(file), providers=providers)
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"it runs by {session.get_providers()}")
    name = session.get_inputs()[0].name

    def run(feeds: Feeds, _wanted: Any) -> Any:
        return session.run(None, feeds)

    if rows:
        run = padded(run, rows)
    return lambda them, which: run({name: (them.pixels if kind is np.uint8 else them.rows)[which]}, ())[0]


def by_torch(file: Path, on_gpu: bool) -> Callable[[Pictures, slice], Any]:
    import torch

    device = torch.device("cuda" if on_gpu else "cpu")
    network = torch.jit.optimize_for_inference(
        torch.jit.freeze(torch.jit.load(file, map_location=device).eval())
    )

    def run(them: Pictures, which: slice) -> Any:
        with torch.inference_mode():
            return network(torch.from_numpy(them.rows[which]).to(device)).cpu().numpy()

    return run


# --- both kinds of food model by Triton


@dataclass(frozen=True)
class Arm:
    """A config of a model: the file's own if `instances` is 0."""

    model: str
    instances: int = 0
    batching: bool = False
    engine: str = ""  # of food_classifier
    cpu: bool = False

    def __str__(self) -> str:
        if not self.instances:
            return "as its config has it"
        by = "CPU" if self.cpu else self.engine or "ONNX Runtime"
        count = f"{self.instances} instance{'s' if self.instances > 1 else ''}"
        return f"{by}, {count}, {'batches of up to 16' if self.batching else 'a row at a time'}"

    def config(self, usual: dict[str, Any]) -> dict[str, Any]:
        """Return the arm's config, based on the one of the first start."""
        config = copy.deepcopy(usual)
        kind = "KIND_CPU" if self.cpu else usual["instance_group"][0]["kind"]
        config["instance_group"] = [{"kind": kind, "count": self.instances}]
        config.pop("dynamic_batching", None)
        if self.batching:
            config["dynamic_batching"] = {"preferred_batch_size": [16]}
        # Triton keeps running instances as they are where nothing but the group differs.
        turned = {"arm": str(self), "cpu_engine": self.engine, "cpu_precision": "int8" if self.cpu else ""}
        config["parameters"] |= {name: {"string_value": value} for name, value in turned.items() if value}
        return config


def arms(on_gpu: bool) -> list[Arm]:
    """Return the configs to measure, the most important first."""
    cores = os.cpu_count() or 1
    first = [Arm(MODEL), Arm(ONNX), Arm(MODEL, 4 if on_gpu else 2, batching=True, engine="torch")]
    if on_gpu:
        first += [Arm(model, cores // 2, cpu=True) for model in (MODEL, ONNX)]
    counts = (4, 8, 1) if on_gpu else (1, 2)
    return first + [
        Arm(model, count, batching)
        for count in counts
        for batching in (True, False)
        for model in (MODEL, ONNX)
    ]


class Triton:
    """The server under test, over HTTP."""

    def __init__(self, folder: Path, log: Path, profile: str) -> None:
        http, grpc, metrics = free_ports(3)
        self.options = TritonOptions(
            (folder,),
            http_port=http,
            grpc_port=grpc,
            metrics_port=metrics,
            extra=(f"--model-config-name={profile}",) if profile else (),
        )
        os.environ[CONFIG_NAME_ENV] = profile
        self._log = log.open("a")
        self._server = TritonServer(self.options, lambda line: print(line, file=self._log, flush=True))

    def __enter__(self) -> Triton:
        self._server.start((MODEL, ONNX))
        self._server.wait_until_live(180)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._log.close()

    @property
    def processes(self) -> list[psutil.Process]:
        return tree(self._server.pid)

    def gpu_metrics(self) -> list[str]:
        with urllib.request.urlopen(self.options.metrics_url, timeout=10) as answer:
            return [line for line in answer.read().decode().splitlines() if line.startswith("nv_gpu")]


@contextmanager
def suppressed(report: Report) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        report.say("", f"It ended with {type(exc).__name__}: {str(exc)[:500]}", "")


def served(report: Report, pictures: Pictures, on_gpu: bool, log: Path) -> None:
    report.say("", "## Both food models by Triton", "")
    with tempfile.TemporaryDirectory() as folder:
        for model in (MODEL, ONNX):
            shutil.copytree(DEFAULT / model, Path(folder, model))
        for profile in ("gpu", "") if on_gpu else ("",):
            began = time.monotonic()
            with suppressed(report), Triton(Path(folder), log, profile) as triton:
                took = time.monotonic() - began
                words = f"configs/{profile}.pbtxt" if profile else "config.pbtxt"
                report.say(f"- With {words} of the models, Triton answered {took:.1f} s after its start.")
                with connect(triton.options.http_url) as client:
                    index = client.index()
                broken = {name: about for name, about in index.items() if about.get("state") != "READY"}
                for name, about in broken.items():
                    report.say(f"- {name} is not served: {about.get('reason', '')[:500]}")
                if broken and profile:
                    continue  # without the profile, the CPU would do as well
                measured(report, triton, pictures, on_gpu)
                report.say("", "GPU metrics of this Triton: " + ("; ".join(triton.gpu_metrics()) or "none"))
                return


def measured(report: Report, triton: Triton, pictures: Pictures, on_gpu: bool) -> None:
    target = Addresses(triton.options.http_url)
    with connect(target.url) as client:
        usual = {model: client.config(model) for model in (MODEL, ONNX)}
    clients = Clients(target.url, pictures)
    starts = []
    headings = "rows/s", "p50 ms", "p99 ms", "rows a run", "GPU %", "server's cores", "answers"
    report.table("model", "config", "clients", *headings)
    with clients:
        for arm in arms(on_gpu):
            if report.left_s() < 25:
                report.row(arm.model, arm, "left out: no time")
                continue
            by_int8 = arm.model == MODEL and not arm.engine and (arm.cpu or not on_gpu)
            expected = pictures.expected(arm.model, int8=by_int8)
            try:
                began = time.monotonic()
                if arm.instances:
                    load_config(target, arm.model, arm.config(usual[arm.model]))
                loaded = time.monotonic()
                clients.ask(arm.model, expected, 1, 0.0)
                first = time.monotonic()
                # Of each size of batch, a GPU's first run is slow.
                clients.ask(arm.model, expected, LEVELS[-1], 1.5 if on_gpu else 0.5)
                starts.append(f"{arm.model} {arm}: {loaded - began:.1f} s and {first - loaded:.1f} s")
                for level in LEVELS:
                    if report.left_s() > 15:
                        report.row(arm.model, arm, level, *point(triton, arm.model, level, clients, expected))
            except Exception as exc:
                report.row(arm.model, arm, f"failed: {type(exc).__name__}: {exc}")
            if arm == Arm(ONNX):
                processes = smi("pid,process_name,used_memory", "compute-apps")
    report.say(
        "",
        "Processes on the GPU, with both models as their configs have them: "
        + ("; ".join(processes) or "none"),
    )
    report.say(
        "", "How long a load took, and the first answer after it:", "", *(f"- {start}" for start in starts)
    )


def point(triton: Triton, model: str, level: int, clients: Clients, expected: Any) -> list[str]:
    """Return the figures of one load."""
    with connect(triton.options.http_url) as client:
        before, cpu, began = client.total(model), cpu_s(triton.processes), time.monotonic()
        loads: list[int] = []
        took, wrong, failed, worst = clients.ask(
            model,
            expected,
            level,
            MEASURED_S,
            lambda: loads.extend(int(percent) for percent in smi("utilization.gpu")[:1] if percent.isdigit()),
        )
        rows = client.total(model).since(before).mean_batch
        busy = spent_s(cpu, cpu_s(triton.processes)) / (time.monotonic() - began)
    answers = f"{wrong} WRONG" if wrong else f"{len(took)} right"
    answers += f", ±{worst:.2g}" + (f"; {len(failed)} failed: {failed[0]}" if failed else "")
    p50, p99 = np.percentile(took, (50, 99)) if len(took) else (np.nan, np.nan)
    gpu = f"{np.mean(loads):.0f}" if loads else "–"
    return [
        f"{len(took) / MEASURED_S:.0f}",
        f"{p50:.2f}",
        f"{p99:.2f}",
        f"{rows:.1f}",
        gpu,
        f"{busy:.1f}",
        answers,
    ]


# --- the clients, in processes of their own


class Clients:
    """The load of `gourmet.measure` in several processes; every answer is compared with its picture's."""

    def __init__(self, url: str, pictures: Pictures) -> None:
        self._url = url
        # Not forked off this process, which uses the GPU.
        self._workers = max(1, (os.cpu_count() or 2) // 3)
        self._pool = multiprocessing.get_context("spawn").Pool(self._workers, keep, [pictures.files])
        self._pool.map(time.sleep, [0.5] * self._workers, chunksize=1)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()

    def ask(
        self,
        model: str,
        expected: Any,
        level: int,
        seconds: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[Any, int, list[str], float]:
        """Return latencies in ms, the number of wrong answers, the failures, and the largest difference."""
        begin = time.time() + 0.2
        shares = [len(range(number, level, self._workers)) for number in range(self._workers)]
        jobs = [(self._url, model, expected, share, begin, seconds) for share in shares if share]
        running = self._pool.starmap_async(load, jobs, chunksize=1)
        while time.time() < begin + seconds:
            meanwhile()
            time.sleep(0.1)
        took, wrong, failed, worst = zip(*running.get(120), strict=True)
        return (
            1e3 * np.concatenate(took),
            sum(wrong),
            [words for some in failed for words in some],
            max(worst),
        )


_files: list[bytes] = []


def keep(files: list[bytes]) -> None:
    """Keep the pictures in a process of the clients."""
    _files.extend(files)


@cache
def rows_of_model(url: str, model: str) -> InputRows:
    with connect(url) as triton:
        return rows_of(triton.describe(model), SYSTEM, _files, "the pictures")


def load(
    url: str, model: str, expected: Any, level: int, begin: float, seconds: float
) -> tuple[Any, int, list[str], float]:
    """Run `level` clients in one process; each sends at least one request."""
    rows, off = rows_of_model(url, model), list[float]()
    wire = TritonHttp(url, model, rows, lambda values: values)

    def check(request: Request, reply: RawReply) -> None:
        probabilities = calibrated(wire.read(reply)[OUTPUTS[model]], 1.0)
        off.append(float(abs(probabilities - expected[list(request.rows)]).max()))

    everything = cycle(requests(wire, len(rows), 1))
    time.sleep(max(0.0, begin - time.time()))
    traffic = Load(wire, everything, LoadSpec(model, level), check, measure_s=seconds).run()
    due, _, done = traffic.arrays()
    return (
        done - due,
        sum(difference > ALLOWED for difference in off),
        list(traffic.errors),
        max(off, default=0.0),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="without a GPU, to try the script itself")
    parser.add_argument("--budget", type=float, default=420, metavar="SECONDS")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the report here too")
    parser.add_argument(
        "--log", type=Path, default=Path(tempfile.gettempdir(), "test-gpu-triton.log"), metavar="FILE"
    )
    options = parser.parse_args()
    cards = smi("name,driver_version,memory.total,power.limit")
    on_gpu = not options.cpu
    if on_gpu and not cards:
        parser.error("nvidia-smi shows no GPU here; --cpu tries the script itself")
    report = Report(options.into, time.monotonic() + options.budget)
    report.say("# On a GPU", "")
    report.say(
        f"- card: {'; '.join(cards) or 'none: this run is of the CPU alone'} (name, driver, MiB, watts)"
    )
    report.say(
        f"- machine: {platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    report.say(
        "- packages: "
        + ", ".join(f"{name} {installed}" for name in PACKAGES if (installed := version_of(name)))
    )
    report.say(f"- ONNX Runtime's providers: {', '.join(ort.get_available_providers())}")
    version_folder = max((DEFAULT / MODEL).glob("[0-9]*"), key=lambda path: int(path.name))
    temperature = float(parameter(as_json(read_config(DEFAULT / MODEL)), "temperature") or 1)
    pictures = Pictures.made(version_folder, temperature)
    alone(report, pictures, version_folder, on_gpu)
    served(report, pictures, on_gpu, options.log)
    report.say("", f"It took {options.budget - report.left_s():.0f} s.", "")


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
