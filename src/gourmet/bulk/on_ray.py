"""The rows of many inputs by the processes of a Ray cluster, each of which reads, decodes and asks by itself.

Ray shares the work out, and does again what was under way on a process or a node that died. Rows come back to
the command, which keeps them as it keeps its own, once for each input. Ray Data's checkpoints promise that at
least (ray#61047), and want a folder that all nodes see and unique ids, where a list may name a photo twice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.bulk.journal import Row
from gourmet.bulk.run import AskRows, HowMany
from gourmet.bulk.workers import Work, how_many, task
from gourmet.errors import GourmetError
from gourmet.runtime.bounded_reading import in_short
from gourmet.runtime.optional import optional

# What kills its process each time is not asked for ever.
_DEATHS: Final = 5


@contextlib.contextmanager
def on_ray(work: Work, together: int) -> Iterator[tuple[AskRows, HowMany]]:
    """How rows are asked for in the cluster at RAY_ADDRESS, or else in one of its own.

    Who runs a cluster runs what they like on those who join it: none is joined that was not named.
    """
    # It would tell its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with contextlib.ExitStack() as stack:
        given = {} if os.environ.get("RAY_ADDRESS") else stack.enter_context(_private())
        ray = optional("ray", "--engine ray", "ray.txt", ", or use --engine local")
        here = Path.cwd()
        try:
            # Workers look for modules in the folder in which a cluster is joined, before all others: a PIL.py
            # beside somebody's photos would be run.
            with contextlib.chdir("/"):
                ray.init(log_to_driver=False, logging_level="error", **given)
        except (ConnectionError, OSError, RuntimeError, ValueError) as exc:
            raise GourmetError(f"no Ray cluster can be joined or started here: {in_short(exc)}") from exc
        stack.callback(ray.shutdown)
        remote = ray.remote(num_cpus=1, max_retries=_DEATHS)(_task_in)

        def ask(names: Sequence[str]) -> list[Row]:
            try:
                found: list[Row] = ray.get(remote.remote(here, work, names, together))
            except ray.exceptions.RayTaskError as exc:
                raise _raised(exc.cause) from exc
            except ray.exceptions.RayError as exc:
                raise GourmetError(f"Ray: {in_short(exc)}") from exc
            return found

        yield ask, how_many(work, together, max(1, int(ray.cluster_resources().get("CPU", 1))))


@contextlib.contextmanager
def _private() -> Iterator[Mapping[str, object]]:
    """What starts a cluster that nobody else reaches: neither from elsewhere nor as another user.

    By itself Ray listens on all interfaces, takes tasks from anyone who has a token that all users may
    read, and keeps its sockets in a folder that all may write.
    """
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    # On any system, and read when Ray is imported: a node's address is that of loopback.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        # It lets everybody into the folder that it is given.
        yield {"address": "local", "include_dashboard": False, "_temp_dir": str(Path(folder, "r"))}


def _task_in(folder: Path, work: Work, names: Sequence[str], together: int) -> list[Row]:
    """Names may be relative to the folder of the command, which a node elsewhere need not have."""
    with contextlib.chdir(folder) if folder.is_dir() else contextlib.nullcontext():
        return task(work, names, together)


def _raised(cause: Any) -> Exception:
    return cause if isinstance(cause, GourmetError) else GourmetError(f"a worker: {cause!r}")
