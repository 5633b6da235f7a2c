"""`gourmet roofline`: compare the operations and bytes of each layer of a network with a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from gourmet.bench.roofline import GPUS, Machine, Roofline, count, measured_machine
from gourmet.commands.bench import table
from gourmet.commands.values import POSITIVE, model_of
from gourmet.errors import UsageError, echo
from gourmet.repository.models import model_names, read_config, repository_of
from gourmet.repository.versions import version_numbers

_ABOVE_0: Final = click.FloatRange(min=0, min_open=True)
_HEADINGS: Final = ("layer", "op", "Mop", "MB", "op/byte", "bound", "µs", "share", "from batch")


@click.command()
@click.argument("model", metavar="SYSTEM-OR-MODEL-OR-FILE", callback=model_of)
@click.option("--batch", default=1, type=POSITIVE, help="Batch size, in rows.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    type=click.Choice(list(GPUS), case_sensitive=False),
    help="Compare with the published figures of this GPU.  [default: this machine, measured]",
)
@click.option(
    "--tflops", type=_ABOVE_0, help="Compare with a device of so many fp32 tera-operations a second."
)
@click.option("--gb-per-s", type=_ABOVE_0, help="Memory bandwidth of that device.")
@click.option("--top", default=12, type=POSITIVE, help="Number of layers to list.")
def roofline(
    model: str, batch: int, gpus: tuple[str, ...], tflops: float | None, gb_per_s: float | None, top: int
) -> None:
    """Count the operations and bytes of MODEL by layer, and say what limits each.

    MODEL is an ONNX file, a system or a served model. A layer is memory-bound where moving its bytes takes
    longer than computing its operations; the last column says from which batch size on it is not. The times
    are limits: memory means main memory, and values that stay in a cache arrive sooner.

    \b
    gourmet roofline food_classifier_onnx --gpu t4
    gourmet roofline food_classifier_onnx --tflops 21.7 --gb-per-s 608
    """
    devices = [GPUS[name] for name in gpus]
    if tflops and gb_per_s:
        name = f"{tflops:g} TFLOPS and {gb_per_s:g} GB/s"
        devices.append(Machine(name, tflops * 1e12, tflops * 1e12, gb_per_s * 1e9, "as given; int8 as fp32"))
    elif tflops or gb_per_s:
        raise UsageError("a device has both: give --tflops and --gb-per-s")
    counted = count(onnx_file(model))
    if batch > 1 and not counted.batches:
        raise UsageError(
            f"{model} takes one row at a time: drop --batch, or export it with a free first dimension"
        )
    totals = counted.totals
    echo(
        f"{Path(model).name}: {totals['operations'] / 1e6:.4g} million operations a row, "
        f"{totals['weight_bytes'] / 1e6:.3g} MB of weights, "
        f"{totals['moved_bytes'] / 1e6:.3g} MB read and written a row"
    )
    if counted.unknown:
        echo(f"operators counted as zero operations, since unknown here: {', '.join(counted.unknown)}")
    busy = [layer for layer in counted.layers if layer.operations or layer.bytes(1)]
    for machine in devices or [measured_machine()]:
        _print(Roofline(machine, batch, busy), top, counted.batches)


def onnx_file(model: str) -> Path:
    """Return the ONNX file MODEL, or that of the latest version of the served model MODEL."""
    if Path(model).is_file() or model.endswith(".onnx"):
        return Path(model)
    folder = repository_of(model) / model
    if model not in (served := model_names(folder.parent)):
        raise UsageError(
            f"{model!r} is neither an ONNX file nor a model of triton/models: that has {', '.join(served)}"
        )
    latest = version_numbers(folder)[-1:]
    files = sorted(file for version in latest for file in (folder / str(version)).glob("**/*.onnx"))
    if not files:
        backend = read_config(folder).backend
        raise UsageError(
            f"{model} is served by the backend {backend!r} and has no ONNX file: name one that has"
        )
    return next((file for file in files if file.name == "model.onnx"), files[0])


def _print(limits: Roofline, top: int, batches: bool) -> None:
    machine, batch = limits.machine, limits.batch
    echo(
        f"\n{machine.name}: {machine.fp32 / 1e9:,.1f} G operations/s in fp32, "
        f"{machine.int8 / 1e9:,.1f} in int8, {machine.bandwidth / 1e9:,.1f} GB/s ({machine.source})\n"
        f"memory-bound below {machine.ridge():.3g} operations a byte in fp32, "
        f"{machine.ridge(quantized=True):.3g} in int8"
    )
    slowest = sorted(limits.layers, key=limits.seconds_of, reverse=True)
    rows = [
        (
            layer.name.removesuffix(f"/{layer.op}"),  # the next column has it
            layer.kind,
            f"{layer.operations * batch / 1e6:.3g}",
            f"{layer.bytes(batch) / 1e6:.3g}",
            f"{layer.intensity(batch):.3g}",
            "memory" if layer.is_memory_bound(machine, batch) else "compute",
            f"{limits.seconds_of(layer) * 1e6:,.1f}",
            f"{limits.seconds_of(layer) / limits.seconds:.1%}",
            str(layer.from_batch(machine) or "never") if batches else "-",
        )
        for layer in slowest[:top]
    ]
    table(_HEADINGS, rows)
    if rest := slowest[top:]:
        share = limits.seconds_of(*rest) / limits.seconds
        echo(f"… and {len(rest)} more, {share:.1%} of the time")
    echo(
        f"{limits.seconds * 1e3:.3g} ms for a batch of {batch} with all through main memory, "
        f"{batch / limits.seconds:,.0f} rows/s; layers that are memory-bound take {limits.memory_share:.0%}\n"
        f"at best, without any wait, {limits.computing_s * 1e3:.3g} ms"
    )
