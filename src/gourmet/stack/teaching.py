"""The jobs of the page's panel "Teach": `gourmet up` learns, deploys and rolls back, one job at a time.

The web app has neither the key that changes Triton nor the right to write models. It asks here, on a socket
that this user alone can open, by a line of JSON: {"do": "learn"}, "use", "undo", "cancel" or "look". Each
answer is the state. A job is a verb of the command line in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.repository import versions
from gourmet.served import manifest
from gourmet.served.files import home
from gourmet.stack.processes import Child

_POLL_S: Final = 0.1
_STOPS_WITHIN_S: Final = 2.0
# gourmet.evaluation.rehearsal writes it.
_REHEARSED: Final = "model.rehearsal.safetensors"
JOBS: Final = ("learn", "use", "undo")
_LEARNED: Final = "learned.npz"
_PROGRESS: Final = ("share", "doing")


def teachable(systems: Mapping[str, str], repositories: Sequence[Path]) -> tuple[str, Path] | None:
    """Return the first of `systems` (name: default model) that can learn more, and its model's folder.

    Beside its network lies the set that is rehearsed.
    """
    for name, model in systems.items():
        for folder in (repository / model for repository in repositories):
            newest = versions(folder)[-1:] if folder.is_dir() else ()
            if newest and (folder / str(newest[0]) / _REHEARSED).exists():
                return name, folder
    return None


class Teaching:
    """The jobs of one system, whose corrections lie in a folder and whose models in a repository."""

    def __init__(
        self, system: str, model: Path, corrections: Path, triton_url: str, say: Callable[[str], None]
    ) -> None:
        self._model, self._say = model, say
        # A run has a folder of its own; the result of the one before stays until there is a new one.
        self._out = home() / "taught" / system
        self._run_folder = self._out / "run"
        learned = self._out / _LEARNED
        where = ("--to", str(model.parent))
        triton = (*where, "--url", triton_url)
        self._verbs = {
            "learn": (
                "learn-more",
                system,
                str(corrections),
                *where,
                "--out",
                str(self._run_folder),
                "--json",
            ),
            "use": ("deploy", system, "--weights", str(learned), *triton),
            "undo": ("rollback", system, *triton),
        }
        self._learned = learned
        self._lock = threading.Lock()
        self._job: threading.Thread | None = None
        self._cancelled = False
        self._state: dict[str, Any] = {
            "system": system,
            "job": "",
            "share": 0.0,
            "doing": "",
            "error": "",
            "learned": None,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start or cancel the requested job, and return the state."""
        job = request.get("do")
        if job == "cancel":
            self.close()
        elif job in JOBS:
            with self._lock:
                if not self._state["job"]:
                    self._state.update(job=job, share=0.0, doing="", error="")
                    self._cancelled = False
                    self._job = threading.Thread(target=self._run, args=(job,), daemon=True)
                    self._job.start()
        newest = versions(self._model)[-1:]
        about = manifest.facts(self._model / str(newest[0])) if newest else {}
        taught = "learned_more" in about.get("training", {})
        return {**self._state, "version": newest[0] if newest else 0, "taught": taught}

    def close(self) -> None:
        """Cancel the running job, if there is one, and wait for its end."""
        self._cancelled = True
        if self._job:
            self._job.join()

    def _run(self, job: str) -> None:
        self._say(f"the page asks: gourmet {' '.join(self._verbs[job])}")
        try:
            error, learned = self._outcome(job)
            if not error and job == "learn":
                (self._run_folder / _LEARNED).replace(self._learned)
            if not error:
                self._state["learned"] = learned
        except OSError as exc:
            error = f"it cannot be run: {exc}"
        self._say(f"{job}: {error or 'done'}")
        self._state.update(job="", error=error)

    def _outcome(self, job: str) -> tuple[str, dict[str, Any] | None]:
        """Run the verb of a job; return its error, empty if there is none, and what it learned."""
        (self._run_folder / _LEARNED).unlink(missing_ok=True)
        lines, learned = list[str](), list[dict[str, Any]]()

        def read(line: str) -> None:
            try:
                message = dict(json.loads(line))
            except (ValueError, TypeError):  # what a verb prints for people
                lines.append(line)
                return
            if "own" in message:
                learned.append(message)
            else:
                self._state.update({name: message[name] for name in _PROGRESS if name in message})

        # A child ends with the thread that started it: this one waits for it.
        child = Child(
            [str(Path(sys.executable).with_name("gourmet")), *self._verbs[job]],
            env=dict(os.environ),
            cwd=Path("/"),
            on_line=read,
        )
        while (status := child.exit_status()) is None:
            if self._cancelled:
                child.stop(_STOPS_WITHIN_S)
            time.sleep(_POLL_S)
        child.reap_group()
        if self._cancelled:
            return "cancelled", None
        reason = "\n".join(lines).rpartition("Error: ")[2].strip()
        return (reason or f"it ended with status {status}") if status else "", next(iter(learned), None)


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
