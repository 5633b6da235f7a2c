"""Triton: its parts, command line, start and stop. It leaves no files behind.

It comes from the PyPI wheel `nvidia-pytriton`, or is the one of NVIDIA's image (Dockerfile.triton).
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from gourmet.errors import GourmetError
from gourmet.repository.models import link_models
from gourmet.served.files import HOME_ENV, RunFolder, home, new_token, own_models, shipped
from gourmet.served.instances import CONFIG_NAME_ENV
from gourmet.stack.api_keys import LockedTriton
from gourmet.stack.processes import Child, LineSink, wait_until
from gourmet.systems import FOLDERS_ENV, folders

ModelControl = Literal["explicit", "poll", "none"]

_SHARED_MEMORY: Final = Path("/dev/shm")
# Triton aborts with this now and then while models load: triton-inference-server/server issue 8882.
_LOCK_FAULT: Final = "boost::interprocess::lock_exception"
_PREFIX: Final = "gourmet-triton-"
ALL: Final = ("*",)
# Triton's drain timeout. Triton waits for idle connections too, such as the web app's: if Triton alone is
# stopped, the app's requests fail for that long.
_DRAIN_TIMEOUT_S: Final = 3
BACKENDS_ENV: Final = "GOURMET_BACKENDS"
# The folder of the Triton in NVIDIA's image, whose environment is complete.
IMAGE_ENV: Final = "GOURMET_TRITON"
# Models on the CPU share one pool of threads: by default NVIDIA's backend takes all cores for each instance.
_OF_IMAGE: Final = ("enable-global-threadpool=1", "intra_op_thread_count=8", "inter_op_thread_count=1")
# The Python backend creates a folder in /tmp at each start, and a killed server leaves it there. A path of
# the same length puts it into the server's own folder, which is removed.
_ENVIRONMENTS: Final = b"/tmp/python_env_"
_IN_OWN_FOLDER: Final = b"././/python_env_"
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class TritonOptions:
    """The options of a server. The defaults are those of `gourmet up`."""

    repositories: tuple[Path, ...]
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    model_control: ModelControl = "explicit"
    traces_to: str = ""  # address for OpenTelemetry traces over HTTP; empty: no traces
    key: str = field(default="", repr=False)  # empty: anyone who reaches the ports may load models
    extra: tuple[str, ...] = ()

    @property
    def ports(self) -> dict[str, int]:
        """The ports by the options of `gourmet up`."""
        return {
            "--http-port": self.http_port,
            "--grpc-port": self.grpc_port,
            "--metrics-port": self.metrics_port,
        }

    @property
    def http_url(self) -> str:
        """The address as host:port."""
        return f"{reachable(self.host)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{reachable(self.host)}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{reachable(self.host)}:{self.metrics_port}/metrics"


def reachable(host: str) -> str:
    """Return the host for clients of a server that listens on `host`: loopback if it is every address."""
    return "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104 - compared


@dataclass(frozen=True)
class InstalledTriton:
    """The Triton of NVIDIA's image."""

    server: Path

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a server."""
        # onnxruntime sends telemetry unless this is set before it is imported.
        return {
            **os.environ,
            "ORT_DISABLE_TELEMETRY": "1",
            # Absolute, since a server works in a folder of its own.
            FOLDERS_ENV: os.pathsep.join(map(str, folders()[1:])),
            HOME_ENV: str(home()),
        }

    def assemble_backends(self, into: Path) -> Path:
        """Return a folder with the backends; it may be made at `into`."""
        return self.server / "backends"

    def arguments(self) -> list[str]:
        return [f"--backend-config=onnxruntime,{setting}" for setting in _OF_IMAGE]


@dataclass(frozen=True)
class TritonWheel(InstalledTriton):
    """The paths of the wheel's parts."""

    libraries: Path
    libpython_dir: Path | None  # None if the system's loader finds libpython

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a server.

        Stubs use the packages of the first python3 on PATH, so this environment comes first. PYTHONPATH would
        not do: stubs for Python 3.11 and later ignore it.
        """
        libraries = [self.libraries, self.libpython_dir, os.environ.get("LD_LIBRARY_PATH")]
        return {
            **super().environment(),
            "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries if path),
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        }

    def assemble_backends(self, into: Path) -> Path:
        """Copy the backends into a folder. Triton refuses links that lead out of it."""
        own = [model.parent for model in own_backends().glob("*/model.py")]
        for backend in (self.server / "backends" / "python", *own):
            shutil.copytree(backend, into / backend.name, ignore=shutil.ignore_patterns("__pycache__"))
        stub = self.server / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
        shutil.copy2(stub, into / "python")
        library = into / "python" / "libtriton_python.so"
        library.write_bytes(library.read_bytes().replace(_ENVIRONMENTS, _IN_OWN_FOLDER))
        return into

    def arguments(self) -> list[str]:
        return []


def find_triton() -> InstalledTriton:
    """Return the Triton of NVIDIA's image, or else of the wheel."""
    return InstalledTriton(Path(folder)) if (folder := os.environ.get(IMAGE_ENV)) else find_wheel()


def own_backends() -> Path:
    """Return the folder of this project's own backends."""
    folder = Path(os.environ.get(BACKENDS_ENV, shipped("triton/backends")))
    if not folder.is_dir():
        raise GourmetError(
            f"{folder} has no backends: run from a checkout, or set {BACKENDS_ENV} to its triton/backends"
        )
    return folder


def find_wheel() -> TritonWheel:
    """Return the wheel of this environment; raise GourmetError if it is missing or cannot work here."""
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise GourmetError(
            "no Triton in this environment: the package nvidia-pytriton is missing. Run `make setup`, on a "
            "system with glibc 2.35 or newer (such as Debian 12 or Ubuntu 22.04)"
        )
    if (numpy := version("numpy")).split(".")[0] != "1":
        raise GourmetError(
            f"numpy {numpy} is installed, but with numpy 2 this Triton passes empty tensors to Python models "
            "without an error: run `pip install 'numpy<2'`"
        )
    own_backends()
    root = Path(spec.origin).parent
    return TritonWheel(root / "tritonserver", root.parent / "nvidia_pytriton.libs", _libpython_dir())


def _libpython_dir() -> Path | None:
    library = f"libpython{_PYTHON}.so.1.0"
    folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    if (folder / library).exists():
        return folder
    try:
        ctypes.CDLL(library)
    except OSError as exc:
        raise GourmetError(
            f"{library} is missing on this machine, and Triton's Python backend needs it: "
            f"install it (Debian and Ubuntu: `apt install libpython{_PYTHON}`)"
        ) from exc
    return None


class TritonServer:
    """A Triton process. As a context manager, it is started on entry and stopped on exit."""

    def __init__(self, options: TritonOptions, on_line: LineSink) -> None:
        self.options = options
        self._on_line = on_line
        self._triton = find_triton()
        token = new_token()
        self._folder = RunFolder(_PREFIX, token=token)
        # The prefix of the Python backend's shared memory: it tells which files a killed server left.
        self._memory = RunFolder(_PREFIX, _SHARED_MEMORY, token)
        self._child: Child | None = None
        self._models: Sequence[str] = ALL
        self._has_lock_fault = False
        self._backends = self._triton.assemble_backends(self._folder.path / "backends")
        self._views = dict[Path, Path]()  # what Triton sees, and of which repository that is a part
        self._changed = 0
        self._repositories = [self._seen(path.absolute()) for path in options.repositories]

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def child(self) -> Child | None:
        return self._child

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def _seen(self, repository: Path) -> Path:
        """Return a path of `repository` without spaces, or of a folder of links if models in it are replaced.

        Triton starts stubs by a line for a shell.
        """
        own = own_models().resolve()
        if own != repository.resolve() and own in (path.resolve() for path in self.options.repositories):
            view = self._folder.path / f"repository-{new_token()}"
            self._views[view] = repository
            return view
        if shlex.quote(str(repository)) == str(repository):
            return repository
        link = self._folder.path / f"repository-{new_token()}"
        link.symlink_to(repository)
        return link

    def follow_repositories(self) -> None:
        """Have Triton see the shipped models without those of which the user has versions of their own."""
        own = own_models()
        folders = [*self._views.values(), *([own] if own.is_dir() else [])]
        changed = max((folder.stat().st_mtime_ns for folder in folders), default=0)
        if self._views and changed != self._changed:
            for view, repository in self._views.items():
                link_models(view, repository)
            self._changed = changed

    def start(self, models: Sequence[str] = ALL) -> Child:
        """Start the process; call `wait_until_live` to wait until it answers.

        With explicit model control, `models` are loaded at the start.
        """
        self._models, self._has_lock_fault = models, False
        self.follow_repositories()
        self._child = LockedTriton(
            self.command(models),
            self.options.key,
            env=self._triton.environment(),
            cwd=self._folder.path,
            on_line=self._line,
            keeps=(self._folder.lock, self._memory.lock),
        )
        return self._child

    def _line(self, line: str) -> None:
        self._has_lock_fault |= _LOCK_FAULT in line
        self._on_line(line)

    def live(self) -> bool:
        """Return whether the server answers, whatever its models do."""
        url = f"http://{self.options.http_url}/v2/health/live"
        return self._child is not None and self._child.is_answering("Triton", url)

    def comes_up(self) -> bool:
        """Return `live()`; start Triton again if that fault ended it. For the main thread only."""
        if self._child and self._child.exit_status() is not None:
            self._child.reap_group()  # which reads the rest of the log
            if self._has_lock_fault:
                self.stop()
                self.start(self._models)
        return self.live()

    def wait_until_live(self, timeout_s: float = 120) -> float:
        """Wait until Triton opens its ports: every model is loaded or has failed then."""
        return wait_until(self.comes_up, timeout_s, f"Triton at {self.options.http_url} did not answer")

    def stop(self) -> None:
        """End the process and its stubs, and remove the shared memory that killed ones leave."""
        if self._child:
            self._child.stop(_DRAIN_TIMEOUT_S + 0.3)
            self._child = None
        self._memory.remove_beside()

    def close(self) -> None:
        """Stop the server and remove its folders."""
        self.stop()
        self._memory.close()
        self._folder.close()

    def command(self, models: Sequence[str] = ALL) -> list[str]:
        """Return the command line of the server, without the key."""
        options = self.options
        command = [
            str(self._triton.server / "bin" / "tritonserver"),
            *(f"--model-repository={path}" for path in self._repositories),
            f"--backend-directory={self._backends}",
            *(
                f"--backend-config={backend.name},shm-region-prefix-name={self._memory.path.name}-"
                for backend in sorted(self._backends.iterdir())
                if backend.name == "python" or (backend / "model.py").exists()
            ),
            f"--http-address={options.host}",
            f"--http-port={options.http_port}",
            f"--grpc-address={options.host}",
            f"--grpc-port={options.grpc_port}",
            f"--metrics-address={options.host}",
            f"--metrics-port={options.metrics_port}",
            f"--model-control-mode={options.model_control}",
            # A broken model must not stop the others from serving.
            "--exit-on-error=false",
            "--strict-readiness=false",
            f"--exit-timeout-secs={_DRAIN_TIMEOUT_S}",
            "--allow-gpu-metrics=true",
            *self._triton.arguments(),
        ]
        # Triton prefers configs/NAME.pbtxt of a model to its config.pbtxt.
        if profile := os.environ.get(CONFIG_NAME_ENV):
            command.append(f"--model-config-name={profile}")
        if options.model_control == "explicit":
            command += [f"--load-model={name}" for name in models]
        if options.traces_to:
            command += [
                "--trace-config=mode=opentelemetry",
                "--trace-config=level=TIMESTAMPS",
                "--trace-config=rate=1",  # every request whose traceparent says that the web app traces it
                f"--trace-config=opentelemetry,url={options.traces_to}",
                "--trace-config=opentelemetry,resource=service.name=gourmetgram-triton",
            ]
        return [*command, *options.extra]
