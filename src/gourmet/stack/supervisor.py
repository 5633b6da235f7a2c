"""Start Triton and the web app, and start again what dies.

A process that dies is started again with a backoff (`SupervisedProcess`). A restarted Triton first loads the
models that the app needs. A model of which one Python process dies is reloaded (`StubWatchdog`). If
Triton's lock fault ends it while it starts, `TritonServer` starts it again, also in tests and benchmarks.

Triton's Python backend runs each instance of a model in a process of its own, a stub. When a stub dies,
because memory ran out or a library crashed, its instance fails every request from then on. Triton reloads a
loaded model only if its config changes, so a parameter counts the deaths. The other instances answer until
the new ones do. Triton does not end the old stubs of a model of which one died, so the watchdog does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from gourmet.contracts import INSTEAD_OF
from gourmet.errors import GourmetError
from gourmet.repository.config_file import ConfigFile
from gourmet.repository.models import CONFIG, models_in
from gourmet.repository.versions import version_numbers
from gourmet.served import manifest
from gourmet.served.files import HOME_ENV, home
from gourmet.served.instances import CONFIG_NAME_ENV
from gourmet.served.signals import STOPS, handled
from gourmet.stack import preflight
from gourmet.stack.connect import LOADS_WITHIN_S, ask_sample, connect
from gourmet.stack.processes import Child, wait_until
from gourmet.stack.readable_logs import LogPrinter
from gourmet.stack.triton_server import TritonServer, reachable
from gourmet.systems import FOLDERS_ENV, folders
from gourmet.triton_client.address import ADMIN_ENV, TOKEN_ENV
from gourmet.triton_client.model_config import as_json, parse
from gourmet.triton_client.triton import BadSample, Triton

# Together with Triton's drain timeout, less than the ten seconds that Ctrl-C may take.
_WEB_DRAIN_TIMEOUT_S: Final = 3.5
_POLL_S: Final = 0.1
_HEALTHY_S: Final = 60.0
CORRECTIONS_ENV: Final = "KEEP_CORRECTIONS"
_TEACH_ENV: Final = "TEACH_SOCKET"
_WATCHED_EVERY_S: Final = 1.0
# Longer than any request may take: the old instances have finished by then.
_LAST_ANSWERS_S: Final = 15.0
# How long a process may stay stopped (SIGSTOP).
_FROZEN_S: Final = 10.0
_STUB: Final = "triton_python_backend_stub"
# The parameter of a model's config that counts deaths.
_DEATHS: Final = "stubs_died"


@dataclass(frozen=True)
class WebOptions:
    """The web app's address, workers and threads, and what it asks and keeps."""

    host: str
    port: int
    workers: int
    threads: int
    triton_url: str = ""  # the Triton that it asks, if none is started here
    models: Sequence[str] = ()  # the models that visitors may choose
    corrections: Path | None = None  # where the app keeps the photos that visitors correct
    teach_socket: Path | None = None  # where the page's "Teach" is answered

    @property
    def url(self) -> str:
        return f"http://{reachable(self.host)}:{self.port}"


def load_older_versions(
    triton: Triton, repositories: Iterable[Path], damaged: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Load an older version of each model that failed to load, or is `damaged`; report to `say`.

    `damaged` has the reasons by model.
    """
    folders = {model.name: model for model in models_in(repositories)}
    failed = {
        name: entry.get("reason")
        for name, entry in triton.index().items()
        if entry.get("state") == "UNAVAILABLE" and entry.get("reason") != "unloaded"
    }
    for name, reason in sorted({**failed, **damaged}.items()):
        say(f"the model {name!r} did not load, the others serve: {reason}")
        served = _load_older(triton, folders[name]) if name in folders else None
        if served:
            say(f"version {served} of {name!r} serves instead; to keep it, run `gourmet rollback {name}`")


def _load_older(triton: Triton, model: Path) -> int | None:
    newest, *older = reversed(version_numbers(model) or (0,))
    for number in older:
        try:
            facts = manifest.facts(model / str(number))
            texts = ConfigFile.read(model).of_manifest(facts).texts()
            profile = f"configs/{os.environ.get(CONFIG_NAME_ENV)}.pbtxt"
            config = as_json(parse(texts.get(profile, texts[CONFIG])))
            manifest.check_files(None, config, model / str(number))
            config["version_policy"] = {"specific": {"versions": [number]}}
            config.setdefault("parameters", {})[INSTEAD_OF] = {"string_value": str(newest)}
            triton.load(model.name, config)
        except (GourmetError, ValueError):
            continue  # this version does not load either
        return number
    return None


def backoff_s(lived_s: float, waited_s: float | None) -> float:
    """Return the seconds until the next start: 0 at first and after a healthy life, then up to 30."""
    if waited_s is None or lived_s > _HEALTHY_S:
        return 0.0
    return min(max(0.5, 2 * waited_s), 30.0)


class SupervisedProcess:
    """A process that is started again when it dies."""

    def __init__(self, name: str, start: Callable[[], Child]) -> None:
        self._name = name
        self._start = start
        self._waited_s: float | None = None
        self._start_again: float | None = None
        self.child = start()
        self._started = time.monotonic()

    def restart_if_ended(self, say: Callable[[str], None]) -> None:
        """Notice the process's end, and start it again when the backoff is over."""
        now = time.monotonic()
        if self._start_again is None and (status := self.child.exit_status()) is not None:
            self._waited_s = backoff_s(now - self._started, self._waited_s)
            when = f" in {self._waited_s:.1f} s" if self._waited_s else ""
            say(f"{self._name} ended with status {status}; starting it again{when}")
            self.child.reap_group()
            self._start_again = now + self._waited_s
        if self._start_again is not None and now >= self._start_again:
            self.child = self._start()
            self._started, self._start_again = time.monotonic(), None


class Supervisor:
    """Run a Triton, a web app, or both, until `stopping` is set. The caller closes `server`.

    `models` are the configured models by system; `loaded` are all models that Triton loads.
    """

    def __init__(
        self,
        log: LogPrinter,
        stopping: threading.Event,
        models: Mapping[str, str],
        loaded: Sequence[str],
        server: TritonServer | None,
        web: WebOptions | None,
    ) -> None:
        self._log = log
        self._stopping = stopping
        self._models = models
        self._loaded = loaded
        self._server = server
        self._web_options = web
        self._damaged: dict[str, str] = {}

    def run(self, on_ready: Callable[[], None]) -> None:
        """Start everything, call `on_ready` when all of it answers, and return when it is to stop."""
        processes, web = [], None
        try:
            if self._server:
                processes.append(self._started(self._server))
            if (options := self._web_options) and not self._stopping.is_set():
                web = SupervisedProcess("the web app", lambda: self._start_web(options))
                child = web.child
                self._until(lambda: child.is_answering("the web app", f"{options.url}/healthz"))
                processes.append(web)
            if not self._stopping.is_set():
                on_ready()
            while not self._stopping.wait(_POLL_S):
                if self._server:
                    self._server.follow_repositories()
                for process in processes:
                    process.restart_if_ended(self._say)
        finally:
            if web:
                web.child.stop(_WEB_DRAIN_TIMEOUT_S + 0.5)

    def _started(self, server: TritonServer) -> SupervisedProcess:
        """Start Triton and wait until its models answer."""
        process = SupervisedProcess("Triton", lambda: self._start_triton(server))
        self._wait_for_models(server)
        process.child = server.child or process.child
        watchdog = StubWatchdog(server.options.http_url, self._say)
        watchdog.start(lambda: server.pid, self._stopping)
        return process

    def _until(self, ready: Callable[[], bool]) -> None:
        while not self._stopping.is_set() and not ready():
            self._stopping.wait(_POLL_S)

    def _start_triton(self, server: TritonServer) -> Child:
        """Start Triton. A restarted one begins with the models that the app needs and loads the others later.

        Triton opens its ports when the models of its command line are loaded, and each takes seconds.
        """
        is_restart = server.pid is not None and self._models and server.options.model_control == "explicit"
        server.stop()  # removes the stubs and the shared memory of the server that died
        if server.options.model_control == "explicit":
            self._damaged = preflight.damaged(server.options.repositories, self._loaded)
        names = self._models.values() if is_restart else self._loaded
        child = server.start([name for name in names if name not in self._damaged])
        if is_restart:
            self._load_the_others(server)
        return child

    def _load_the_others(self, server: TritonServer) -> None:
        """Load the other models in a thread when Triton answers. Triton logs each failure itself."""
        pid = server.pid

        def load() -> None:
            try:
                wait_until(server.live, 120, "Triton did not answer")
            except TimeoutError:
                # A Triton that hangs in a load never opens its ports: kill it, so that it is started again.
                if pid and server.pid == pid:
                    os.kill(pid, signal.SIGKILL)
                return
            except GourmetError:
                return  # it ended again, and is started again
            with contextlib.suppress(GourmetError):
                with connect(server.options.http_url, LOADS_WITHIN_S) as triton:
                    index = triton.index()
                    for name in self._loaded:
                        is_ready = index.get(name, {}).get("state") == "READY" or name in self._damaged
                        if not is_ready and server.pid == pid:
                            with contextlib.suppress(GourmetError):
                                triton.load(name)
                    self._load_older_versions(server)
                if server.pid == pid:
                    self._say("all models are loaded")

        threading.Thread(target=load, daemon=True).start()

    def _wait_for_models(self, server: TritonServer) -> None:
        """Wait for Triton, and ask each configured model its sample. A model that fails is only reported."""
        self._until(server.comes_up)
        if self._stopping.is_set():
            return
        try:
            # Ctrl-C must interrupt this call: a model that hangs never answers.
            with handled(dict.fromkeys(STOPS, signal.default_int_handler)):
                self._ask_models(server)
        except KeyboardInterrupt:
            self._stopping.set()
        except GourmetError:
            time.sleep(_POLL_S)  # a lost connection may be noticed before the end of the process
            server.live()  # raises the better error if Triton has ended
            raise

    def _ask_models(self, server: TritonServer) -> None:
        self._load_older_versions(server)
        for system, name in self._models.items():
            try:
                answer = ask_sample(server.options.http_url, system, name)
                self._say(f"{name} answers: {answer}")
            except BadSample as exc:
                self._say(f"{name} was not checked: {exc}", "red")
            except GourmetError as exc:
                if not server.live():
                    raise
                self._say(f"{name} does not answer, the others serve: {exc}", "red")

    def _load_older_versions(self, server: TritonServer) -> None:
        with connect(server.options.http_url, LOADS_WITHIN_S) as triton:
            load_older_versions(
                triton, server.options.repositories, self._damaged, lambda text: self._say(text, "red")
            )

    def _start_web(self, options: WebOptions) -> Child:
        command = [
            *(sys.executable, "-m", "gunicorn", "--config", "python:app.web.gunicorn_conf"),
            *("--bind", f"{options.host}:{options.port}"),
            *("--workers", str(options.workers)),
            *("--graceful-timeout", str(int(_WEB_DRAIN_TIMEOUT_S))),
            "app:create_app()",
        ]
        env = {**os.environ, "TRITON_SERVER_URL": options.triton_url}
        if self._server:
            triton = self._server.options
            env |= {"TRITON_SERVER_URL": triton.http_url, "TRITON_GRPC_URL": triton.grpc_url}
            env["TRITON_METRICS_URL"] = triton.metrics_url
            env.pop(TOKEN_ENV, None)  # the token is for a Triton elsewhere
        env.setdefault("SERVED_MODELS", ",".join(options.models))
        env["MAX_AT_WORK"] = str(options.threads)
        env[CORRECTIONS_ENV] = str(options.corrections or "")
        env[_TEACH_ENV] = str(options.teach_socket or "")
        if options.corrections:
            self._say(f"photos with corrected labels are kept in {options.corrections}")
        env[FOLDERS_ENV] = os.pathsep.join(map(str, folders()[1:]))
        env[HOME_ENV] = str(home())
        env.pop(ADMIN_ENV, None)  # a public server must not be able to change Triton
        # gunicorn imports modules from its working directory first. So it is neither the checkout, whose
        # triton/ passes for torch's package, nor a folder in which others may write.
        return Child(command, env=env, cwd=Path("/"), on_line=self._log.sink("web"))

    def _say(self, text: str, colour: str | None = None) -> None:
        self._log.say("gourmet", text, colour)


class StubWatchdog:
    """Watch the stubs of the Triton at `url` (host:port), and reload models."""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        self._url = url
        self._say = say
        self._triton: int | None = None
        # A psutil.Process is not mistaken for a later process with the same number.
        self._models: dict[psutil.Process, str] = {}
        self._zombies: set[psutil.Process] = set()
        self._stopped_since: dict[psutil.Process, float] = {}
        self._deaths = 0
        self._replaced: list[tuple[float, list[psutil.Process]]] = []  # when to end which processes

    def start(self, triton_pid: Callable[[], int | None], stopped: threading.Event) -> None:
        """Look at the stubs now, to learn their models, and then in a thread until `stopped`."""

        def watch() -> None:
            while not stopped.wait(_WATCHED_EVERY_S):
                self._check_stubs(triton_pid())

        self._check_stubs(triton_pid())
        threading.Thread(target=watch, daemon=True).start()

    def _check_stubs(self, triton_pid: int | None) -> None:
        """Notice stubs that died, and reload their models."""
        if triton_pid is None:
            return
        if triton_pid != self._triton:
            self._triton, self._models, self._zombies, self._replaced = triton_pid, {}, set(), []
        self._end_replaced()
        stubs, zombies = list[psutil.Process](), set[psutil.Process]()
        with contextlib.suppress(psutil.Error):  # the supervisor notices the end of Triton itself
            stubs = psutil.Process(triton_pid).children()
        for process in stubs:
            with contextlib.suppress(psutil.Error):  # Triton ended it
                status = process.status()
                self._end_frozen(process, status == psutil.STATUS_STOPPED)
                if status == psutil.STATUS_ZOMBIE:
                    zombies.add(process)
                elif not self._models.get(process):
                    version = version_of_stub(process)
                    self._models[process] = version.parent.name if version else ""
        # Triton reaps the stubs that it ends at once, so a stub that stays a zombie has died.
        dead = {self._models.pop(process, "") for process in zombies & self._zombies} - {""}
        self._zombies = zombies
        for model in sorted(dead):
            self._reload(model)

    def _end_frozen(self, process: psutil.Process, is_stopped: bool) -> None:
        """Kill a process that has been stopped for too long: Triton goes on sending requests to it."""
        if not is_stopped:
            self._stopped_since.pop(process, None)
        elif time.monotonic() - self._stopped_since.setdefault(process, time.monotonic()) > _FROZEN_S:
            self._say(f"a process of the model {self._models.get(process)!r} is stopped; killing it")
            process.kill()

    def _reload(self, model: str) -> None:
        before = [process for process, name in self._models.items() if name == model]
        self._deaths += 1
        self._say(f"a process of the model {model!r} died; reloading the model")
        try:
            with connect(self._url, LOADS_WITHIN_S) as triton:
                config = triton.config(model)
                config.setdefault("parameters", {})[_DEATHS] = {"string_value": str(self._deaths)}
                triton.load(model, config)
        except GourmetError as exc:
            self._say(f"the model {model!r} could not be reloaded: {exc}")
            return
        self._replaced.append((time.monotonic() + _LAST_ANSWERS_S, before))

    def _end_replaced(self) -> None:
        while self._replaced and self._replaced[0][0] <= time.monotonic():
            for process in self._replaced.pop(0)[1]:
                self._models.pop(process, None)
                with contextlib.suppress(psutil.Error):
                    process.kill()


def version_of_stub(process: psutil.Process) -> Path | None:
    """Return the version's folder that a stub runs: its first argument is the path of the model's file."""
    command = process.cmdline()
    return Path(command[1]).parent.resolve() if command and command[0].endswith(_STUB) else None
