"""The jobs of the page's panel "Teach": `gourmet up` learns, deploys and rolls back, one job at a time.

The web app has neither the key that changes Triton nor the right to write models. It asks here, on a socket
that this user alone can open, by a line of JSON: {"system": "flowers", "do": "learn"}, or "use", "confirm"
(use it although many labels are doubted), "undo", "redo", "cancel" or "look". Each answer is the system's
state. A job is a verb of the command line in a process of its own. "new" makes a system of the photos that
the app has put into a folder of `home()/drafts`, and "delete" removes one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.repository.versions import newest_version, version_numbers, withdrawn_versions
from gourmet.served import manifest
from gourmet.served.files import home, own_models
from gourmet.stack.processes import Child
from gourmet.systems import described, registry

_POLL_S: Final = 0.1
_STOPS_WITHIN_S: Final = 2.0
# gourmet.evaluation.rehearsal writes it.
_REHEARSED: Final = "model.rehearsal.safetensors"
JOBS: Final = ("learn", "use", "confirm", "undo", "redo", "new", "delete")
# Photos of a new classifier, until it is made.
DRAFTS: Final = "drafts"
LABELS: Final = "labels.txt"
_LEARNED: Final = "learned.npz"
_PROGRESS: Final = ("share", "doing")


def teachable(system: str, repositories: Sequence[Path]) -> Path | None:
    """Return the folder of the system's default model if it can learn more: a rehearsal set is beside it."""
    if system not in registry.names():
        return None
    name = registry.load(system).default_model
    # The user's own repository is the last: a model in it replaces the shipped one.
    folder = next((path / name for path in reversed(repositories) if version_numbers(path / name)), None)
    return folder if folder and (newest_version(folder) / _REHEARSED).exists() else None


class Teaching:
    """The jobs of all systems that can learn more, one at a time."""

    def __init__(
        self, repositories: Sequence[Path], corrections: Path, triton_url: str, say: Callable[[str], None]
    ) -> None:
        self._repositories, self._corrections = repositories, corrections
        self._triton_url, self._say = triton_url, say
        self._lock = threading.Lock()
        self._job: threading.Thread | None = None
        self._cancelled = False
        self._states = dict[str, dict[str, Any]]()

    def _verb(self, system: str, job: str, model: Path | None, title: str) -> list[str]:
        if job == "new":
            draft = home() / DRAFTS / system
            labels = ["--data", str(draft), "--labels", str(draft / LABELS), f"--title={title}"]
            return ["new", system, *labels, "--url", self._triton_url, "--json"]
        if not model or job == "delete":
            return ["remove", system, "--yes", "--url", self._triton_url]
        # Versions of a shipped model go to the user's repository, if that is served.
        own = own_models().resolve()
        new = own if own in self._repositories else model.parent
        where, learned = ["--to", str(model.parent)], str(self._out(system) / _LEARNED)
        triton, to_new = ([*place, "--url", self._triton_url] for place in (where, ["--to", str(new)]))
        photos, run = str(self._corrections / system), str(self._out(system) / "run")
        return {
            "learn": ["learn-more", system, photos, *where, "--out", run, "--json"],
            "use": ["deploy", system, "--weights", learned, *to_new],
            "confirm": ["deploy", system, "--weights", learned, "--force", *to_new],
            "undo": ["rollback", system, *triton],
            "redo": ["rollback", system, "--undo", *triton],
        }[job]

    @staticmethod
    def _out(system: str) -> Path:
        """Return the folder of results; the result before stays until a run has a new one."""
        return home() / "taught" / system

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Start or cancel the requested job, and return the system's state; None if it cannot learn more."""
        job, system = request.get("do"), str(request.get("system"))
        model = teachable(system, self._repositories)
        is_there = system in registry.names()
        is_possible = {
            "new": not is_there and bool(described.NAME.fullmatch(system)),
            "delete": is_there and registry.is_data(system),
        }.get(str(job), bool(model))
        if not is_possible and system not in self._states:
            return None
        if job == "cancel":
            self.close()
        with self._lock:
            state = self._states.setdefault(
                system,
                {
                    **{"system": system, "job": "", "share": 0.0, "doing": "", "error": ""},
                    **{"learned": None, "made": None},
                },
            )
            busy = next((one["system"] for one in self._states.values() if one["job"]), "")
            if job in JOBS and is_possible and not busy:
                state.update(job=job, share=0.0, doing="", error="")
                self._cancelled = False
                verb = self._verb(system, job, model, str(request.get("title")))
                self._job = threading.Thread(target=self._run, args=(state, verb), daemon=True)
                self._job.start()
            elif job in JOBS and busy not in ("", system):
                state["error"] = f"{busy} is being taught: try again when that has ended"
        if not model:
            return state
        version = newest_version(model)
        return {
            **state,
            "version": int(version.name),
            "taught": "learned_more" in manifest.facts(version).get("training", {}),
            "withdrawn": bool(withdrawn_versions(model)),
        }

    def close(self) -> None:
        """Cancel the running job, if there is one, and wait for its end."""
        self._cancelled = True
        if self._job:
            self._job.join()

    def _run(self, state: dict[str, Any], verb: list[str]) -> None:
        out, job = self._out(state["system"]), state["job"]
        self._say(f"the page asks: gourmet {' '.join(verb)}")
        try:
            error, result = self._outcome(state, verb)
            if not error and job == "learn":
                (out / "run" / _LEARNED).replace(out / _LEARNED)
            if not error:
                state["learned"], state["made"] = (result, None) if job != "new" else (None, result)
            if job == "new":
                shutil.rmtree(home() / DRAFTS / state["system"], ignore_errors=True)
        except OSError as exc:
            error = f"it cannot be run: {exc}"
        self._say(f"{job}: {error or 'done'}")
        state.update(job="", error=error)

    def _outcome(self, state: dict[str, Any], verb: list[str]) -> tuple[str, dict[str, Any] | None]:
        """Run a verb; return its error, empty if there is none, and its result."""
        (self._out(state["system"]) / "run" / _LEARNED).unlink(missing_ok=True)
        lines, results = list[str](), list[dict[str, Any]]()

        def read_line(line: str) -> None:
            try:
                message = dict(json.loads(line))
            except (ValueError, TypeError):  # what a verb prints for people
                lines.append(line)
                return
            if "share" in message:
                state.update({name: message[name] for name in _PROGRESS if name in message})
            else:
                results.append(message)

        # A child ends with the thread that started it: this one waits for it.
        child = Child(
            [str(Path(sys.executable).with_name("gourmet")), *verb],
            env=dict(os.environ),
            cwd=Path("/"),
            on_line=read_line,
        )
        while (status := child.exit_status()) is None:
            if self._cancelled:
                child.stop(_STOPS_WITHIN_S)
            time.sleep(_POLL_S)
        child.reap_group()
        if self._cancelled:
            return "cancelled", None
        reason = "\n".join(lines).rpartition("Error: ")[2].strip()
        return (reason or f"it ended with status {status}") if status else "", next(iter(results), None)


@contextlib.contextmanager
def listening(teaching: Teaching, name: str) -> Iterator[Path]:
    """Answer at a socket of this `name` in the user's folder; yield its path."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = 5

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                state = teaching.answer(json.loads(self.rfile.readline(1000)))
                self.wfile.write(json.dumps(state).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

        def server_activate(self) -> None:
            path.chmod(0o600)  # before anyone can connect
            super().server_activate()

    home().mkdir(parents=True, exist_ok=True)
    shutil.rmtree(home() / DRAFTS, ignore_errors=True)  # of browsers that were closed
    path = home() / name
    path.unlink(missing_ok=True)
    folder = os.open(home(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        # A socket's address has at most 108 bytes, and the user's folder may have a longer name.
        server = Server(f"/proc/self/fd/{folder}/{name}", Handler)
    except OSError as exc:
        raise GourmetError(f"no socket can be made in {home()}: {exc}") from exc
    try:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
        thread.start()
        yield path
        server.shutdown()
    finally:
        teaching.close()
        server.server_close()
        path.unlink(missing_ok=True)
        os.close(folder)
