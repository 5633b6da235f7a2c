"""One Triton out of the wheel: its command line, its life and what it leaves behind (nothing)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from gourmet.runtime.files import RunFolder, new_token
from gourmet.serving import api_keys
from gourmet.serving.processes import Child, LineSink
from gourmet.serving.waiting import wait_until
from gourmet.serving.wheel import find_wheel

ModelControl = Literal["explicit", "poll", "none"]

_SHARED_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "gourmet-triton-"
ALL: Final = ("*",)
# Triton waits for so long when asked to end, also for connections on which nothing is under way, such as the
# web app keeps: when it alone is stopped, requests fail for that long.
_DRAIN_TIMEOUT_S: Final = 3


@dataclass(frozen=True)
class TritonOptions:
    """What one may choose about a server; the defaults are those of `gourmet up`."""

    repositories: tuple[Path, ...]
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    model_control: ModelControl = "explicit"
    response_cache_bytes: int = 0
    traces_to: str = ""  # the address that takes OpenTelemetry's traces over HTTP; none are made without
    key: str = field(default="", repr=False)  # without one, anyone who reaches the ports may load models
    extra: tuple[str, ...] = ()

    @property
    def http_url(self) -> str:
        """host:port, as Triton's clients want it."""
        return f"{reachable(self.host)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{reachable(self.host)}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{reachable(self.host)}:{self.metrics_port}/metrics"


def reachable(host: str) -> str:
    """Where to ask a server that listens on `host`: one bound to every address is asked on loopback."""
    return "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104 - compared


class TritonServer:
    """Start, ask, stop. As a context manager it is started on entry and stopped on exit."""

    def __init__(self, options: TritonOptions, on_line: LineSink) -> None:
        self.options = options
        self._on_line = on_line
        self._wheel = find_wheel()
        token = new_token()
        self._folder = RunFolder(_PREFIX, token=token)
        # The Python backend names its shared memory after this, so that what it leaves behind is recognised.
        self._memory = RunFolder(_PREFIX, _SHARED_MEMORY, token)
        self._child: Child | None = None
        self._hiding = api_keys.Hiding("")
        self._backends = self._wheel.assemble_backends(self._folder.path / "backends")

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self, models: Sequence[str] = ALL) -> Child:
        """Start the process; it answers a while later, see `wait_until_live`.

        `models` are those to begin with, where models are loaded by command.
        """
        self._hiding = api_keys.Hiding(self.options.key)
        self._child = Child(
            self.command(models),
            env=self._wheel.environment(),
            cwd=self._folder.path,
            on_line=self._line,
            keeps=(self._folder.lock, self._memory.lock),
        )
        self._hiding.pid = self._child.pid
        return self._child

    def _line(self, line: str) -> None:
        self._hiding.see(line)
        self._on_line(line)

    def live(self) -> bool:
        """Whether the server answers at all; says nothing about any model."""
        url = f"http://{self.options.http_url}/v2/health/live"
        return self._child is not None and self._child.answers("Triton", url)

    def wait_until_live(self, timeout_s: float = 120) -> float:
        """Wait until every model was loaded or given up: only then does Triton open its ports."""
        return wait_until(self.live, timeout_s, f"Triton at {self.options.http_url} did not answer")

    def stop(self) -> None:
        """End the process and its stubs, and remove the shared memory they leave when killed."""
        if self._child:
            self._child.stop(_DRAIN_TIMEOUT_S + 0.3)
            self._child = None
        self._memory.remove_beside()

    def close(self) -> None:
        """Stop, and remove the server's own folders."""
        self.stop()
        self._memory.close()
        self._folder.close()

    def command(self, models: Sequence[str] = ALL) -> list[str]:
        """The command line that this server is started with."""
        options = self.options
        command = [
            str(self._wheel.server / "bin" / "tritonserver"),
            # Triton runs in a folder of its own.
            *(f"--model-repository={path.absolute()}" for path in options.repositories),
            f"--backend-directory={self._backends}",
            *(
                f"--backend-config={backend.name},shm-region-prefix-name={self._memory.path.name}-"
                for backend in sorted(self._backends.iterdir())
            ),
            f"--http-address={options.host}",
            f"--http-port={options.http_port}",
            f"--grpc-address={options.host}",
            f"--grpc-port={options.grpc_port}",
            f"--metrics-address={options.host}",
            f"--metrics-port={options.metrics_port}",
            f"--model-control-mode={options.model_control}",
            # One broken model must keep none of the others from serving.
            "--exit-on-error=false",
            "--strict-readiness=false",
            f"--exit-timeout-secs={_DRAIN_TIMEOUT_S}",
            "--allow-gpu-metrics=true",
        ]
        if options.model_control == "explicit":
            command += [f"--load-model={name}" for name in models]
        if options.response_cache_bytes:
            command += [
                f"--cache-directory={self._wheel.server / 'caches'}",
                f"--cache-config=local,size={options.response_cache_bytes}",
            ]
        if options.traces_to:
            command += [
                "--trace-config=mode=opentelemetry",
                "--trace-config=level=TIMESTAMPS",
                "--trace-config=rate=1",  # of those that the web app traces; it says so in the traceparent
                f"--trace-config=opentelemetry,url={options.traces_to}",
                "--trace-config=opentelemetry,resource=service.name=gourmetgram-triton",
            ]
        if options.key:
            command += api_keys.arguments(options.key)
        return [*command, *options.extra]
