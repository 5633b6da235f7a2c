"""The stack of `gourmet up`: its checks, then Triton and the web app until a signal.

Triton starts first. The web app stops first, so that it drains while Triton still answers. A process that
dies is started again with a backoff. A restarted Triton first loads the models that the app needs. If a
process of a model dies, the model is reloaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from gourmet.contracts import INSTEAD_OF
from gourmet.errors import GourmetError, UsageError
from gourmet.repository import CONFIG, versions
from gourmet.repository.config_file import ConfigFile
from gourmet.served import manifest
from gourmet.served.files import HOME_ENV, home
from gourmet.served.instances import CONFIG_NAME_ENV
from gourmet.served.signals import STOPS, handled, set_on_stop
from gourmet.stack import preflight, run_file
from gourmet.stack.connect import LOADS_WITHIN_S, ask_sample, connect
from gourmet.stack.processes import Child, wait_until
from gourmet.stack.readable_logs import LogPrinter
from gourmet.stack.stub_watchdog import StubWatchdog
from gourmet.stack.teaching import Teaching, listening, teachable
from gourmet.stack.triton_server import TritonOptions, TritonServer, reachable
from gourmet.systems import FOLDERS_ENV, folders, registry
from gourmet.triton_client.address import ADMIN_ENV, LOOPBACK, TOKEN_ENV
from gourmet.triton_client.errors import ModelUnavailable, TritonUnreachable
from gourmet.triton_client.model_config import as_json, parse
from gourmet.triton_client.triton import BadSample, Triton

# Together with Triton's drain timeout, less than the ten seconds that Ctrl-C may take.
_WEB_DRAIN_TIMEOUT_S: Final = 3.5
_POLL_S: Final = 0.1
_HEALTHY_S: Final = 60.0
_CORRECTIONS: Final = "KEEP_CORRECTIONS"
_TEACH: Final = "TEACH_SOCKET"
_OPEN: Final = (
    "others reach {} too: put a proxy in front, as docs/operating.md has it, and set TRUSTED_PROXIES=1"
)


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


def run_stack(
    log: LogPrinter,
    triton: TritonOptions | None,
    web: WebOptions | None,
    systems: Sequence[str] = (),
    *,
    load_all: bool = False,
) -> None:
    """Run Triton, a web app, or both, until a signal; without `triton`, the web app asks `web.triton_url`."""
    started = time.monotonic()
    preflight.check_open_files()
    if triton:
        preflight.check_ports(triton.host, triton.ports)
    if web:
        preflight.check_ports(web.host, {"--port": web.port})
    with contextlib.ExitStack() as kept:
        served = preflight.check_repositories(triton.repositories) if triton else {}
        if systems:
            served = preflight.of_systems(served, systems)
        models = preflight.configured_models(os.environ, served) if triton else {}
        held_back = []
        if triton and not load_all and triton.model_control == "explicit":
            held_back = preflight.held_back(served, models.values())
        loaded = [name for name in served if name not in held_back]
        if web:
            if not triton:
                _check_chosen_models(web.triton_url)
            web = replace(
                web,
                models=preflight.models_of_web({name: served[name] for name in loaded}),
                corrections=_corrections(os.environ, web.host),
            )
        server, stopping = None, threading.Event()
        kept.enter_context(set_on_stop(stopping))  # until now Ctrl-C ends this process at once
        if triton:
            kept.enter_context(_run_file(triton, web.url if web else ""))
            server = kept.enter_context(contextlib.closing(TritonServer(triton, log.sink("triton"))))
            defaults = {name: system.default_model for name, system in registry.load_all().items()}
            taught = teachable(defaults, triton.repositories) if web and web.corrections else None
            if web and web.corrections and taught:
                system, model = taught
                teaching = Teaching(
                    *(system, model, web.corrections / system, triton.http_url),
                    lambda text: log.say("gourmet", text),
                )
                socket = kept.enter_context(listening(teaching, f"teach-{web.port}.sock"))
                web = replace(web, teach_socket=socket)

        def announce() -> None:
            log.say("gourmet", f"ready after {time.monotonic() - started:.1f} s; Ctrl-C stops", "green")
            if triton:
                log.say("gourmet", f"Triton   http://{triton.http_url}, gRPC {triton.grpc_url}", "green")
            if held_back:
                log.say("gourmet", f"{', '.join(held_back)}: loaded when a verb asks, or all with --all")
            if web:
                log.say("gourmet", f"the page {web.url}", "green")
                if web.host not in LOOPBACK:
                    log.say("gourmet", _OPEN.format(web.host), "yellow")

        Supervisor(log, stopping, models, loaded, server, web).run(announce)
    log.say("gourmet", "stopped")


def _run_file(triton: TritonOptions, web_url: str) -> contextlib.AbstractContextManager[Path]:
    """Tell this user's other programs about the stack within the block."""
    stack = run_file.RunningStack(
        pid=os.getpid(),
        http_url=triton.http_url,
        grpc_url=triton.grpc_url,
        metrics_url=triton.metrics_url,
        web_url=web_url,
        repositories=[str(path) for path in triton.repositories],
        model_control=triton.model_control,
    )
    content = {"stack": asdict(stack)} | ({"admin": triton.key} if triton.key else {})
    return run_file.run_file_for((triton.http_port, triton.grpc_port), content)


def _corrections(env: Mapping[str, str], host: str) -> Path | None:
    """Return the folder of corrected photos: the configured one, else the user's own on loopback alone."""
    configured = env.get(_CORRECTIONS)
    if configured is None and host in LOOPBACK:
        return home() / "corrections"
    return Path(configured.strip()).resolve() if configured and configured.strip() else None


def _check_chosen_models(url: str) -> None:
    """Raise UsageError if a variable names a model that this Triton lacks, or one of another system."""
    for system, contract in registry.load_all().items():
        if not (name := os.environ.get(contract.model_variable)):
            continue
        refused = f"{contract.model_variable} is {name!r}, which is"
        try:
            with connect(url) as triton:
                info = triton.describe(name)
        except ModelUnavailable as exc:
            if exc.state:  # it may still be loading
                continue
            ready = ", ".join(exc.ready) or "none"
            raise UsageError(f"{refused} not a served model: choose one of {ready}") from exc
        except TritonUnreachable:
            return
        if info.system not in ("", system):
            raise UsageError(f"{refused} a model of the system {info.system!r}: choose one of {system}")


def traces_to(env: Mapping[str, str]) -> str:
    """Return where the web app sends its traces, so that Triton's go there too."""
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or (base and f"{base.rstrip('/')}/v1/traces")


def load_older_versions(
    triton: Triton, repositories: Iterable[Path], damaged: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Load an older version of each model that failed to load, or is `damaged`; report to `say`.

    `damaged` has the reasons by model.
    """
    folders = {model.name: model for folder in repositories for model in folder.iterdir() if model.is_dir()}
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
    newest, *older = reversed(versions(model) or (0,))
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
        env[_CORRECTIONS] = str(options.corrections or "")
        env[_TEACH] = str(options.teach_socket or "")
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
