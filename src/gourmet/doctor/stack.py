"""Check the models on disk, Triton, the served models and the web app."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final

from gourmet import repository
from gourmet.client.errors import TritonUnreachable
from gourmet.client.model_config import as_json, summary
from gourmet.doctor.findings import Examined, Finding, fail, ok, refused, warn
from gourmet.errors import GourmetError
from gourmet.repository import config_change
from gourmet.runtime import manifest
from gourmet.runtime.instances import instance_count
from gourmet.serving import preflight
from gourmet.serving.connect import ask_sample, connect
from gourmet.serving.processes import http_ok
from gourmet.serving.triton_server import reachable
from gourmet.systems import registry

# The app asks its model before it answers.
_READY_WITHIN_S: Final = 30.0


def configs(subject: Examined) -> Iterator[Finding]:
    """Check that every config can be read. Triton checks models against their configs when it loads them."""
    names = preflight.check_repositories(subject.repositories)
    yield ok(f"{len(names)} models: {', '.join(names)}")
    for model in _models(subject):
        try:
            config = as_json(repository.read_config(model))
        except repository.RepositoryError as exc:
            yield refused(exc)
            continue
        if "default_queue_policy" in config.get("dynamic_batching", {}) and instance_count(config) < 2:
            yield warn(
                f"{model.name} has a queue policy and one instance, so some requests wait half a second",
                "remove the policy from its config, or give it two instances (docs/measuring.md)",
            )


def systems(_: Examined) -> Iterator[Finding]:
    """Check that every system can be used: the pages do not show broken ones."""
    for name, reason in registry.broken().items():
        yield fail(f"the system {name} is broken ({reason})", f"correct it, or `gourmet remove {name}`")
    yield ok(f"{len(registry.load_all())} systems: {', '.join(registry.load_all())}")


def manifests(subject: Examined) -> Iterator[Finding]:
    """Check that the files of each version are the deployed ones."""
    verified: list[str] = []
    without: list[str] = []
    for model in _models(subject):
        try:
            config = as_json(repository.read_config(model))
            for version in (model / str(number) for number in repository.versions(model)):
                has_manifest = manifest.check(None, config, version)
                (verified if has_manifest else without).append(model.name)
        except manifest.ManifestError as exc:
            yield refused(exc)
        except repository.RepositoryError:  # `configs` reports it
            continue
    if without:
        yield ok(f"no manifest, and none required: {', '.join(dict.fromkeys(without))}")
    yield ok(f"{', '.join(dict.fromkeys(verified)) or 'no model'} as deployed")


def _models(subject: Examined) -> list[Path]:
    return [folder / name for folder in subject.repositories for name in repository.model_names(folder)]


def server(subject: Examined) -> Iterator[Finding]:
    try:
        with connect(subject.url) as triton:
            answered = triton.version().partition(" ")[2]
    except TritonUnreachable as exc:
        if subject.must_run:
            raise
        cause, _, fix = str(exc).partition(": ")
        yield warn(f"{cause}, so the served models were not checked", fix)
    else:
        yield ok(f"client {installed('tritonclient')}, server {answered}")


def served(subject: Examined) -> Iterator[Finding]:
    """Check that Triton serves every model, in its newest version and with the config on disk."""
    if not _runs(subject):
        yield ok("no server to ask")
        return
    with connect(subject.url) as triton:
        index = triton.versions()
    ready: dict[str, int] = {}
    for entry in index:
        if entry.get("state") == "READY":
            ready[entry["name"]] = max(int(entry["version"]), ready.get(entry["name"], 0))
    on_disk, held_back = preflight.check_repositories(subject.repositories), list[str]()
    for entry in index:
        name, state, reason = entry["name"], entry.get("state", ""), entry.get("reason", "")
        if state == "UNAVAILABLE" and reason != "unloaded":
            first_line = next(iter(reason.splitlines()), "no reason given")  # a traceback may follow
            yield fail(f"{name} did not load ({first_line})", f"correct it, then {_load(subject, name)}")
        elif name not in ready and not state and preflight.waits_until_asked(on_disk.get(name, {})):
            held_back.append(name)
        elif name not in ready:
            yield warn(f"{name} is not loaded ({reason or state or 'never requested'})", _load(subject, name))
    for name, version in ready.items():
        folders = [folder / name for folder in subject.repositories if (folder / name).is_dir()]
        newest = max((number for folder in folders for number in repository.versions(folder)), default=0)
        if newest > version:
            yield warn(
                f"{name} serves version {version}, but version {newest} is on disk", _load(subject, name)
            )
    yield from strayed(subject, sorted(ready))
    if held_back:
        yield ok(f"loaded when a verb asks: {', '.join(sorted(held_back))}")
    yield ok(f"ready: {', '.join(sorted(ready)) or 'no model'}")


def strayed(subject: Examined, models: Iterable[str]) -> Iterator[Finding]:
    """Check that each model serves the config of its files. A killed lab may leave another one."""
    with connect(subject.url) as triton:
        for folder in (path / name for name in models for path in subject.repositories):
            try:
                on_disk = as_json(repository.read_config(folder)) if folder.is_dir() else None
            except repository.RepositoryError:  # `configs` reports it
                continue
            if on_disk and config_change.strayed(running := triton.config(folder.name), on_disk):
                yield warn(
                    f"{folder.name} serves another config than its files ({summary(running)})",
                    f"if that is not intended, reset it (`gourmet config {folder.name} --reset"
                    f"{_url_option(subject)}`)",
                )


def answers(subject: Examined) -> Iterator[Finding]:
    """Check that every configured model answers its sample."""
    if not _runs(subject):
        yield ok("no server to ask")
        return
    with connect(subject.url) as triton:
        names = sorted(triton.index())
    for system, name in preflight.configured_models(
        subject.environment, {name: {} for name in names}
    ).items():
        try:
            yield ok(f"{name} answers: {ask_sample(subject.url, system, name)}")
        except GourmetError as exc:
            yield refused(exc)


def web(subject: Examined) -> Iterator[Finding]:
    """Check that the web app is ready. It may ask another Triton than this one."""
    url = f"http://{reachable(subject.host)}:{subject.ports.get('--port')}"
    if "--port" not in subject.ports or not http_ok(f"{url}/healthz"):
        yield ok("no web app to ask")
        return
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_READY_WITHIN_S):
            yield ok(f"{url} is ready")
    except OSError as exc:
        reason = (
            exc.read().decode(errors="replace").strip() if isinstance(exc, urllib.error.HTTPError) else exc
        )
        yield fail(
            f"the web app at {url} runs but is not ready ({reason})",
            "see the lines above; it asks the Triton of its TRITON_SERVER_URL",
        )


def _load(subject: Examined, name: str) -> str:
    return f"load it (`gourmet config {name} --reset{_url_option(subject)}`)"


def _url_option(subject: Examined) -> str:
    return f" --url {subject.url}" if subject.must_run else ""


def _runs(subject: Examined) -> bool:
    with connect(subject.url) as triton:
        return triton.is_live()
