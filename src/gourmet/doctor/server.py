"""The running server: its version, its models, and what a load generator may send them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version as installed
from typing import Any

from gourmet import repository
from gourmet.doctor.findings import Finding, Subject, fail, ok, refused, warn
from gourmet.doctor.models import as_triton_sees, tensor_names
from gourmet.errors import GourmetError
from gourmet.serving import preflight
from gourmet.serving.asking import TritonUnreachable, ask_sample, model_index, triton

# The oldest server that this was tested with: 24.10, out of the wheel.
OLDEST_SERVER = (2, 51)


def version(subject: Subject) -> Iterator[Finding]:
    try:
        with triton(subject.url) as client:
            answered = str(client.get_server_metadata()["version"])
    except TritonUnreachable as exc:
        if subject.must_run:
            raise
        cause, _, fix = str(exc).partition(": ")
        yield warn(f"{cause}, so what it serves was not looked at", fix)
        return
    yield from skew(installed("tritonclient"), answered)


def skew(client: str, server: str) -> Iterator[Finding]:
    """Client and server, by their versions: they understand each other within a major version."""
    ours, theirs = _numbers(client), _numbers(server)
    says = f"client {client}, server {server}"
    if ours[:1] != theirs[:1]:
        yield fail(f"{says} are of different major versions", "install what requirements/triton.txt pins")
    elif theirs < OLDEST_SERVER:
        oldest = ".".join(str(number) for number in OLDEST_SERVER)
        yield warn(f"{says}, which is older than any tested ({oldest})", "serve with a newer Triton")
    else:
        yield ok(says)


def readiness(subject: Subject) -> Iterator[Finding]:
    """Every model that Triton knows of serves, and serves what lies on disk."""
    if not _runs(subject):
        yield ok("no server to ask")
        return
    with triton(subject.url) as client:
        index = client.get_model_repository_index()
    serving: dict[str, set[int]] = {}
    for entry in index:
        name, state, reason = entry["name"], entry.get("state", ""), entry.get("reason", "")
        if state == "READY":
            serving.setdefault(name, set()).add(int(entry["version"]))
        elif state == "UNAVAILABLE" and reason != "unloaded":
            yield fail(
                f"{name} did not load ({_first_line(reason)})",
                f"correct it, then `gourmet config {name} --reset`",
            )
        elif name not in {other["name"] for other in index if other.get("state") == "READY"}:
            yield warn(f"{name} is not loaded ({reason or state or 'never asked for'})", _load(name))
    for name, versions in serving.items():
        if (newest := _newest_on_disk(subject, name)) > max(versions):
            yield warn(f"{name} serves version {max(versions)}, version {newest} lies on disk", _load(name))
    yield ok(f"ready: {', '.join(sorted(serving)) or 'no model'}")


def answers(subject: Subject) -> Iterator[Finding]:
    """The models of the pages answer their sample rightly, not only that they are ready."""
    if not _runs(subject):
        yield ok("no server to ask")
        return
    with triton(subject.url) as client:
        names = sorted(model_index(client))
    for model in preflight.configured_models(subject.environment, names):
        try:
            with triton(subject.url) as client:
                label, probability = ask_sample(client, model.system, model.name)
        except GourmetError as exc:
            yield refused(exc)
        else:
            yield ok(f"{model.name} says {label}, {probability:.0%} sure, to its sample")


def inputs(subject: Subject) -> Iterator[Finding]:
    """The --shape arguments that somebody means to give to perf_analyzer, against the model's inputs."""
    if subject.model is None:
        yield ok("no model to look at; name one with -m to have perf_analyzer's --shape checked")
        return
    config = _config_of(subject, subject.model)
    said = False
    for finding in _about_inputs(subject.model, config, subject.shapes):
        said = True
        yield finding
    if not said:
        yield ok(f"{subject.model} takes {tensor_names(config['input'])}")


def _about_inputs(
    model: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Finding]:
    takes = {tensor["name"]: [int(dim) for dim in tensor["dims"]] for tensor in config["input"]}
    for name, given in shapes.items():
        if name not in takes:
            yield fail(
                f"--shape {_shape(name, given)} is for an input that {model} has not; "
                f"it has {tensor_names(config['input'])}",
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


def _config_of(subject: Subject, model: str) -> Mapping[str, Any]:
    """The model's config as it is served, or as it lies on disk where nothing is served."""
    if _runs(subject):
        with triton(subject.url) as client:
            index = model_index(client)
            if index.get(model, {}).get("state") == "READY":
                config: Mapping[str, Any] = client.get_model_config(model)
                return config
    for folder in subject.repositories:
        if model in repository.model_names(folder):
            return as_triton_sees(folder / model)
    known = ", ".join(name for folder in subject.repositories for name in repository.model_names(folder))
    raise repository.RepositoryError(f"there is no model {model!r}, there is {known}: name one of these")


def _fits(given: tuple[int, ...], takes: list[int]) -> bool:
    return len(given) == len(takes) and all(b in (-1, a) for a, b in zip(given, takes, strict=True))


def _shape(name: str, dims: tuple[int, ...] | list[int]) -> str:
    return f"{name}:{','.join(str(dim) for dim in dims)}"


def _runs(subject: Subject) -> bool:
    try:
        with triton(subject.url) as client:
            return bool(client.is_server_live())
    except TritonUnreachable:
        return False


def _newest_on_disk(subject: Subject, name: str) -> int:
    folders = [folder / name for folder in subject.repositories if (folder / name).is_dir()]
    return max((number for folder in folders for number in repository.versions(folder)), default=0)


def _load(name: str) -> str:
    return f"load it (`gourmet config {name} --reset`)"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
