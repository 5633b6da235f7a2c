"""A real Ray cluster of several nodes on this machine, each with processes of its own, and a run on it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.triton import MODELS
from support.up import GOURMET

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ABSENT = "optional: pip install -c requirements/constraints.txt -r requirements/ray.txt"
NODE = {"include_dashboard": False, "object_store_memory": 100 << 20}


@contextmanager
def cluster(*cpus: int) -> Iterator[Any]:
    """A node for each number of processors; the first is where the command joins."""
    utils = pytest.importorskip("ray.cluster_utils", reason=ABSENT)
    head, *others = ({"num_cpus": each, **NODE} for each in cpus)
    found = utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        for each in others:
            found.add_node(**each)
        found.wait_for_nodes()
        yield found
    finally:
        found.shutdown()


def command(photos: Path, out: Path, *words: object) -> list[str]:
    return verb("classify", photos, "--out", out, *words)


def verb(*words: object) -> list[str]:
    """One that asks a model's own file."""
    return [str(word) for word in (GOURMET, *words, "--via", "file", "--model-repository", MODELS)]


def rows_of(
    argv: list[str],
    cluster: Any = None,
    meanwhile: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    given: Path | None = None,
) -> list[dict[str, Any]]:
    """The rows of a command that runs here or on a cluster, while something is done; `given` is stdin."""
    more = ["--engine", "ray"] if cluster else []
    env = {**os.environ, **({"RAY_ADDRESS": cluster.address} if cluster else {})}
    with (
        (given or Path(os.devnull)).open() as stdin,
        subprocess.Popen([*argv, *more], stdin=stdin, stderr=subprocess.PIPE, text=True, env=env) as process,
    ):
        try:
            meanwhile(process)
            said = process.communicate(timeout=1_200)[1]
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, said
    out = Path(argv[argv.index("--out") + 1])
    return [json.loads(line) for line in out.read_text().splitlines()]


def workers(node: Any) -> list[psutil.Process]:
    """Processes of a node that are at work now."""
    raylet, found = psutil.Process(node.all_processes["raylet"][0].process.pid), []
    for each in raylet.children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            if each.cmdline()[:1] == ["ray::_task_in"]:
                found.append(each)
    return found
