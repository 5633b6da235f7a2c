"""`--engine ray` on a real cluster of two nodes, of which one dies on the way."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.eventually import eventually
from support.foreign_modules import sprung, trap
from support.ray_cluster import ABSENT, NODE, cluster, command, rows_of, verb, workers

from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of five hundred, in which each of them is named several times, and two that are no photos."""
    folder = tmp_path_factory.mktemp("photos")
    for number, data in enumerate(SYSTEM.examples(48, 7, (96, 80))):
        (folder / f"{number:02}.jpg").write_bytes(data)
    (folder / "none.png").write_bytes(b"no picture")
    names = [*map(str, sorted(folder.iterdir())), str(folder / "gone.jpg")]
    listed = folder / "list.txt"
    listed.write_text("\n".join(names * 10))
    return listed


@pytest.fixture(scope="module")
def here(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the command makes of them by itself."""
    rows = rows_of(command(photos, tmp_path_factory.mktemp("here") / "out.jsonl", "--together", "2"))
    assert len(rows) == 500
    assert sum(bool(row["error"]) for row in rows) == 20
    return rows


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One for all, since it takes long to start."""
    with cluster(1) as found:
        yield found


def test_a_worker_and_then_a_node_that_are_killed_change_nothing_in_the_table(
    ray: Any, photos: Path, here: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    part = Path(f"{out}.part")
    died = []

    def kept() -> int:
        return part.read_bytes().count(b"\n") - 1 if part.exists() else 0

    second = ray.add_node(num_cpus=1, **NODE)
    ray.wait_for_nodes()

    def meanwhile(_: subprocess.Popen[str]) -> None:
        eventually(lambda: kept() > 0 and bool(workers(second)), 120)
        for each in workers(second):
            each.send_signal(signal.SIGKILL)
            died.append(each.pid)
        before = kept()
        eventually(lambda: kept() > before, 60)
        ray.remove_node(second, allow_graceful=False)
        assert not out.exists(), "it was over before the node died"

    assert rows_of(command(photos, out, "--together", "2"), ray, meanwhile) == here
    assert died


def test_what_was_stopped_goes_on_upon_a_cluster(
    ray: Any, photos: Path, here: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    part = Path(f"{out}.part")
    argv = command(photos, out, "--together", "2")
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        eventually(lambda: part.exists() and part.read_bytes().count(b"\n") > 20, 60)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert rows_of(argv, ray) == here


def test_five_hundred_lines_are_translated_while_a_worker_dies(ray: Any, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_bytes(b"\n".join(TRANSLATOR.examples(500, seed=1)))
    here, out = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    died = []

    def meanwhile(_: subprocess.Popen[str]) -> None:
        eventually(lambda: bool(workers(ray.head_node)), 120)
        for each in workers(ray.head_node):
            each.send_signal(signal.SIGKILL)
            died.append(each.pid)
        assert not out.exists(), "it was over before a worker died"

    rows = rows_of(verb("translate", "--out", out), ray, meanwhile, texts)
    assert died
    assert len(rows) == 500
    assert rows == rows_of(verb("translate", "--out", here), given=texts)


def test_a_cluster_of_its_own_is_reached_by_nobody_else(
    photos: Path, here: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from elsewhere, nor as another user of the machine, whose own it does not join either; nor does
    it import what lies beside the photos.
    """
    pytest.importorskip("ray", reason=ABSENT)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, folder in (("HOME", tmp_path / "home"), ("TMPDIR", Path("/tmp") / f"own-{os.getpid()}")):
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    monkeypatch.chdir(trapped := trap(tmp_path / "photos", "PIL", "numpy"))
    shared, seen = Path(os.environ["TMPDIR"]), set[str]()
    (shared / "ray").mkdir()
    (shared / "ray" / "ray_current_cluster").write_text("192.0.2.1:6379")  # as another user may leave it

    def meanwhile(process: subprocess.Popen[str]) -> None:
        part = tmp_path / "out.jsonl.part"
        eventually(
            lambda: process.poll() is not None or (part.exists() and part.stat().st_size > 10_000), 120
        )
        for each in psutil.Process(process.pid).children(recursive=True):
            seen.update(at.laddr.ip for at in each.net_connections("inet") if at.status == psutil.CONN_LISTEN)
        (made,) = (each for each in shared.iterdir() if each.name != "ray")
        assert made.stat().st_mode & 0o077 == 0

    try:
        out = command(photos, tmp_path / "out.jsonl", "--together", "2", "--engine", "ray")
        assert rows_of(out, meanwhile=meanwhile) == here
        assert seen
        assert all(ipaddress.ip_address(each.removeprefix("::ffff:")).is_loopback for each in seen), seen
        assert not (tmp_path / "home" / ".ray").exists(), "a token that everybody could read"
        assert not sprung(trapped)
        assert [each.name for each in shared.iterdir()] == ["ray"]
    finally:
        shutil.rmtree(shared)
