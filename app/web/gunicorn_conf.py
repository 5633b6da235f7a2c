"""gunicorn's settings: `gunicorn --config python:app.web.gunicorn_conf 'app:create_app()'`.

The command line overrides these settings, and so do gunicorn's own variables PORT and WEB_CONCURRENCY.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from pathlib import Path
from typing import Any

from gunicorn.glogging import Logger

from app.web.settings import Settings, SettingsError
from gourmet.served import malloc
from gourmet.served.files import RunFolder

_MOST_FILES = 8192
bind = f"{os.environ.get('WEB_HOST', '127.0.0.1')}:{os.environ.get('PORT', '5000')}"
worker_class = "gthread"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
# Each connection is an open file, and so are threads' connections to Triton, logs, metrics and libraries.
_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
_files = _MOST_FILES if _files == resource.RLIM_INFINITY else min(_files, _MOST_FILES)
resource.setrlimit(resource.RLIMIT_NOFILE, (_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
# More than there are threads, so that a probe is accepted while all of those wait.
worker_connections = max(16, _files - 256)
_refused = ""
try:
    threads = min(Settings.from_env(os.environ).threads, worker_connections)
except SettingsError as exc:
    threads, _refused = 1, str(exc)
timeout = 60
# As long as an admitted request may take (REQUEST_DEADLINE_S); `gourmet up` waits less.
graceful_timeout = 10
# Longer than nginx keeps an idle connection (proxy/nginx.conf).
keepalive = 10
# Workers touch a file to show that they are alive, which a slow disk must not delay.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
control_socket_disable = True
accesslog: str | None = "-"
# Only TRUSTED_PROXIES decides which proxies are trusted. By default gunicorn would take the scheme, and
# SCRIPT_NAME, which changes the requested path, from any client on loopback.
forwarder_headers, forwarded_allow_ips, secure_scheme_headers = "", "", dict[str, str]()
# Address, request, status, bytes, milliseconds, id.
access_log_format = '%(h)s "%(r)s" %(s)s %(b)sB %(M)sms %({x-request-id}o)s'


class LogWithoutQueries(Logger):  # type: ignore[misc]
    """Log requests without query strings and invalid lines, which may contain keys."""

    def atoms(self, resp: Any, req: Any, environ: Any, request_time: Any) -> dict[str, Any]:
        atoms: dict[str, Any] = super().atoms(resp, req, environ, request_time)
        path = environ["RAW_URI"].partition("?")[0]
        return atoms | {"r": f"{environ['REQUEST_METHOD']} {path} {environ['SERVER_PROTOCOL']}"}

    def warning(self, msg: str, *args: Any, **options: Any) -> None:
        """Log "Invalid request from ip=…: REASON: LINE" without the line."""
        if msg.startswith("Invalid request from ip="):
            msg = ": ".join(msg.split(": ")[:2])
        super().warning(msg, *args, **options)

    def exception(self, msg: str, *args: Any, **options: Any) -> None:
        """Log "Error handling request %s" without the query."""
        super().exception(msg, *(str(arg).partition("?")[0] for arg in args), **options)


logger_class = LogWithoutQueries

if os.environ.get("LOG_FORMAT", "").strip() == "json":
    from app.web.logs import gunicorn_config

    logconfig_dict = gunicorn_config()
    accesslog = None

_METRICS = "PROMETHEUS_MULTIPROC_DIR"
# The size of each file, several times what a worker needs with all systems.
_METRICS_BYTES = 1 << 20
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def on_starting(server: Any) -> None:
    """Refuse bad settings in one sentence, and create the folder for the workers' metrics."""
    if _refused:
        server.log.error("%s", _refused)
        sys.exit(2)
    name_hosts(server)
    server.metrics_folder = RunFolder("web-metrics-")  # the workers inherit its lock
    os.environ[_METRICS] = str(server.metrics_folder.path)


def name_hosts(server: Any) -> None:
    """Trust the host names that gunicorn binds to, and log how to trust others."""
    bound = [address[0] for address in server.cfg.address if isinstance(address, tuple)]
    if os.environ.get("TRUSTED_HOSTS", "").strip() == "" and set(bound) - _LOOPBACK:
        server.log.warning(
            "others can reach this at %s: it answers to localhost and to addresses, and to a name such as "
            "food.example where TRUSTED_HOSTS=food.example is set",
            ", ".join(bound),
        )
    names = [host for host in bound if ":" not in host and not host.replace(".", "").isdigit()]
    os.environ["TRUSTED_HOSTS"] = ",".join([os.environ.get("TRUSTED_HOSTS", ""), *names])


def post_fork(server: Any, worker: Any) -> None:
    malloc.use(malloc.WEB)
    if folder := os.environ.get(_METRICS):
        _reserve(Path(folder))


def _reserve(folder: Path) -> None:
    """Take the disk space of this worker's metrics; without room, count in its memory alone.

    The worker writes them through memory maps, and the kernel ends a process that writes to a map without
    room on the disk.
    """
    # Imported when the folder is known: prometheus_client looks for it once.
    from prometheus_client import values

    from app.web.metrics import FILES

    own = [folder / f"{kind}_{os.getpid()}.db" for kind in FILES]
    try:
        for path in own:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _METRICS_BYTES)
    except OSError as exc:
        logging.getLogger("gunicorn.error").error(
            "no room for metrics in %s (%s): /metrics has no counts of this worker", folder, exc
        )
        for path in own:
            path.unlink(missing_ok=True)
        values.ValueClass = values.MutexValue


def child_exit(server: Any, worker: Any) -> None:
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


def on_exit(server: Any) -> None:
    server.metrics_folder.close()
