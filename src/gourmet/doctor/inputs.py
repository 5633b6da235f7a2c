"""What a load generator may send to a model: its inputs, against the --shape that is meant for perf_analyzer.

perf_analyzer 2.50 says nothing about a shape for an input that is not there, nor about other dims than the
config's fixed ones: it measures as if neither had been given (tried).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gourmet import repository
from gourmet.doctor.findings import Examined, Finding, fail, ok, unless_any, warn
from gourmet.doctor.models import as_triton_sees, models_of
from gourmet.doctor.server import runs
from gourmet.serving.client import model_index, triton


def inputs(subject: Examined) -> Iterator[Finding]:
    """The --shape arguments meant for perf_analyzer, against the model's inputs."""
    if subject.model is None:
        yield ok("no model to look at; name one with -m to have perf_analyzer's --shape checked")
        return
    config = _config_of(subject, subject.model)
    yield from unless_any(
        _about_inputs(subject.model, config, subject.shapes),
        f"{subject.model} takes {_named(config['input'])}",
    )


def _about_inputs(
    model: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Finding]:
    takes = {tensor["name"]: [int(dim) for dim in tensor["dims"]] for tensor in config["input"]}
    for name, given in shapes.items():
        if name not in takes:
            yield fail(
                f"--shape {_shape(name, given)} is for an input that {model} does not have, which "
                f"perf_analyzer ignores silently; it has {_named(config['input'])}",
                "give " + " ".join(f"--shape {_shape(known, dims)}" for known, dims in takes.items()),
            )
        elif not _fits(given, takes[name]):
            row = len(given) == len(takes[name]) + 1 and _fits(given[1:], takes[name])
            wanted = given[1:] if row else takes[name]
            yield fail(
                f"--shape {_shape(name, given)} does not fit: {name!r} of {model} is {takes[name]}"
                + (", and a shape is that of one row" if row else ""),
                f"give --shape {_shape(name, wanted)}" + (f" and -b {given[0]}" if row else ""),
            )
    for tensor in config["input"]:
        name = tensor["name"]
        if -1 in takes[name] and name not in shapes:
            yield warn(
                f"{name!r} of {model} is {takes[name]}, where -1 is any size",
                f"perf_analyzer needs one: --shape {_shape(name, takes[name])} with numbers for each -1",
            )
        if tensor["data_type"] == "TYPE_STRING":
            yield warn(
                f"{name!r} of {model} takes bytes, and perf_analyzer makes up random text",
                "give it real ones with --input-data FILE.json",
            )


def _config_of(subject: Examined, model: str) -> Mapping[str, Any]:
    """The model's config as it is served, or as it lies on disk where nothing is served."""
    if runs(subject):
        with triton(subject.url) as client:
            if model_index(client).get(model, {}).get("state") == "READY":
                return dict(client.get_model_config(model))
    on_disk = {path.name: path for path in models_of(subject)}
    if model not in on_disk:
        raise repository.RepositoryError(f"no model {model!r} found: name one of {', '.join(on_disk)}")
    return as_triton_sees(on_disk[model])


def _fits(given: tuple[int, ...], takes: list[int]) -> bool:
    return len(given) == len(takes) and all(b in (-1, a) for a, b in zip(given, takes, strict=True))


def _shape(name: str, dims: tuple[int, ...] | list[int]) -> str:
    return f"{name}:{','.join(str(dim) for dim in dims)}"


def _named(tensors: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{tensor['name']!r} {[int(dim) for dim in tensor['dims']]}" for tensor in tensors)
