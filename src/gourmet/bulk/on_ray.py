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
from functools import cache
from pathlib import Path
from typing import Any, Final

from gourmet.bulk.asked_model import AskedModel
from gourmet.bulk.journal import Row
from gourmet.bulk.photos import Photos
from gourmet.bulk.run import AskRows, HowMany, answered
from gourmet.errors import GourmetError
from gourmet.runtime.bounded_reading import in_short
from gourmet.runtime.optional import optional

# Requests of a task, which is then some tenths of a second, and how many of them are under way at a time.
_REQUESTS: Final = 16
_THREADS: Final = 4
# What kills its process each time is not asked for ever.
_DEATHS: Final = 5


@contextlib.contextmanager
def on_ray(source: AskedModel, together: int) -> Iterator[tuple[AskRows, HowMany]]:
    """How rows are asked for in the cluster at RAY_ADDRESS, or else in one of its own.

    Who runs a cluster runs what they like on those who join it: none is joined that was not named.
    """
    # It would tell its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with contextlib.ExitStack() as stack:
        given = {} if os.environ.get("RAY_ADDRESS") else stack.enter_context(_private())
        ray = optional("ray", "--engine ray", "ray.txt", ", or use --engine local")
        try:
            ray.init(log_to_driver=False, logging_level="error", **given)
        except (ConnectionError, OSError, RuntimeError, ValueError) as exc:
            raise GourmetError(f"no Ray cluster can be joined or started here: {in_short(exc)}") from exc
        stack.callback(ray.shutdown)
        task = ray.remote(num_cpus=1, max_retries=_DEATHS)(_rows)

        def ask(names: Sequence[str]) -> list[Row]:
            try:
                found: list[Row] = ray.get(task.remote(source, names, together))
            except ray.exceptions.RayTaskError as exc:
                raise _raised(exc.cause) from exc
            except ray.exceptions.RayError as exc:
                raise GourmetError(f"Ray: {in_short(exc)}") from exc
            return found

        # Each process has its next task at hand.
        yield ask, HowMany(_REQUESTS * together, 2 * max(1, int(ray.cluster_resources().get("CPU", 1))))


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


def _raised(cause: Any) -> Exception:
    return cause if isinstance(cause, GourmetError) else GourmetError(f"a worker: {cause!r}")


def _rows(source: AskedModel, names: Sequence[str], together: int) -> list[Row]:
    try:
        rows = answered(_opened(source).rows, names, HowMany(together, _THREADS))
        return [row for some in rows for row in some]
    except GourmetError as exc:  # some of which cannot be handed to another process
        raise GourmetError(str(exc)) from None


@cache
def _opened(source: AskedModel) -> Photos:
    """Once for each process."""
    return source.open()
