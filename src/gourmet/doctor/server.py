"""The running stack: the server's version, its models, and what the web app says of itself."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version as installed
from typing import Final

from gourmet import repository
from gourmet.doctor.findings import Examined, Finding, fail, ok, refused, warn
from gourmet.errors import GourmetError
from gourmet.serving import preflight
from gourmet.serving.client import TritonUnreachable, ask_sample, model_index, triton
from gourmet.serving.triton_server import reachable
from gourmet.serving.waiting import http_ok

# The oldest server that this was tested with: 24.10, out of the wheel.
OLDEST_SERVER: Final = (2, 51)
# The app itself waits for its model before it answers.
_READY_WITHIN_S: Final = 30.0


def version(subject: Examined) -> Iterator[Finding]:
    try:
        with triton(subject.url) as client:
            answered = str(client.get_server_metadata()["version"])
    except TritonUnreachable as exc:
        if subject.must_run:
            raise
        cause, _, fix = str(exc).partition(": ")
        yield warn(f"{cause}, so what it serves was not looked at", fix)
        return
    says = f"client {installed('tritonclient')}, server {answered}"
    if tuple(int(part) for part in answered.split(".")[:2]) < OLDEST_SERVER:
        oldest = ".".join(str(number) for number in OLDEST_SERVER)
        yield warn(f"{says}, which is older than any tested ({oldest})", "serve with a newer Triton")
    else:
        yield ok(says)


def readiness(subject: Examined) -> Iterator[Finding]:
    """Every model that Triton knows of serves, and serves what lies on disk."""
    if not runs(subject):
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


def answers(subject: Examined) -> Iterator[Finding]:
    """Every configured model really answers its sample, beyond being ready."""
    if not runs(subject):
        yield ok("no server to ask")
        return
    with triton(subject.url) as client:
        names = sorted(model_index(client))
    for system, name in preflight.configured_models(subject.environment, dict.fromkeys(names, "")).items():
        try:
            answer = ask_sample(subject.url, system, name)
        except GourmetError as exc:
            yield refused(exc)
        else:
            yield ok(f"{name} answers: {answer}")


def web(subject: Examined) -> Iterator[Finding]:
    """What the web app says of itself, which may ask another Triton than this one."""
    port = subject.ports.get("--port")
    url = f"http://{reachable(subject.host)}:{port}"
    if not port or not http_ok(f"{url}/healthz"):
        yield ok("no web app to ask")
        return
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_READY_WITHIN_S):
            yield ok(f"{url} is ready")
    except urllib.error.HTTPError as exc:
        yield fail(
            f"the web app at {url} runs and is not ready ({_reason(exc)})",
            "see the lines above; it asks the Triton of its TRITON_SERVER_URL",
        )
    except OSError as exc:
        yield fail(f"the web app at {url} runs and does not answer /readyz ({exc})", "look at its log")


def _reason(answer: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.code}"


def runs(subject: Examined) -> bool:
    try:
        with triton(subject.url) as client:
            return bool(client.is_server_live())
    except TritonUnreachable:
        return False


def _newest_on_disk(subject: Examined, name: str) -> int:
    folders = [folder / name for folder in subject.repositories if (folder / name).is_dir()]
    return max((number for folder in folders for number in repository.versions(folder)), default=0)


def _load(name: str) -> str:
    return f"load it (`gourmet config {name} --reset`)"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
