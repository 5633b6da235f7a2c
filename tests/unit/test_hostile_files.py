"""Somebody's file is read: nothing in it runs, nothing is written, and it is refused in a sentence."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support import hostile_files
from support.hostile_files import torchscript_that_writes

from gourmet import repository
from gourmet.cli import main
from gourmet.errors import GourmetError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification import new_system
from gourmet.training.files import load_tensors

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

VERBS = {
    "new": "new flowers --labels a,b --weights {file} --architecture torchvision:resnet18 --to {folder}",
    "deployer": "deployer --onnx --config torchvision:resnet18 --checkpoint {file} --save-dir {folder}",
    "deploy": "deploy food11 --format onnx --weights {file} --data {folder} --to {folder}",
    "evaluate": "evaluate food11 --weights {file} --data {folder}",
    "train": "train digits --init {file} --out {folder}/run --limit 20",
}


@pytest.mark.parametrize(
    ("verb", "name"),
    [*((verb, "best.pth") for verb in VERBS), ("deployer", "model.pt"), ("deployer", "checkpoint.pth.tar")],
)
def test_torchscript_of_somebody_is_refused_before_it_is_opened(
    verb: str, name: str, systems_folder: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "sitecustomize.py"
    file = torchscript_that_writes(tmp_path / name, victim)
    done = CliRunner().invoke(main, VERBS[verb].format(file=file, folder=tmp_path).split())
    assert done.exit_code == 1, done.output
    assert f"{file} is TorchScript, a program that would run when it is opened" in done.output
    assert "torch.save(network.state_dict(), …)" in done.output
    assert not victim.exists()


def test_torchscript_is_opened_where_a_manifest_of_the_repository_has_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = torch.nn.Linear(3, 2)
    file = tmp_path / "somewhere.pt"
    torch.jit.trace(network, torch.randn(1, 3)).save(str(file))  # type: ignore[no-untyped-call]
    version = tmp_path / "models" / "linear" / "1"
    version.mkdir(parents=True)
    monkeypatch.setattr(repository, "DEFAULT", tmp_path / "models")
    manifest = version / "manifest.json"

    manifest.write_text(json.dumps({"file": "model.pt", "sha256": sha256(file)}))
    torch.testing.assert_close(load_tensors(file)[0], dict(network.state_dict()))

    manifest.write_text(json.dumps({"file": "model.pt", "sha256": "0" * 64}))
    with pytest.raises(GourmetError, match="is TorchScript"):
        load_tensors(file)


class Watched:
    """What this process writes outside of a folder, starts or connects to, but for our own sandboxes."""

    def __init__(self) -> None:
        self.folder = ""  # nothing is looked at without one
        self.found: list[str] = []
        sys.addaudithook(self._heard)  # for good: a hook cannot be removed

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event == "open" and isinstance(given[0], str) and isinstance(given[2], int):
            writes = given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and not given[0].startswith((self.folder, "/dev/null", "/proc/self/fd/")):
                self.found.append(f"writes {given[0]}")
        elif event == "subprocess.Popen":
            if not any(str(word).endswith("_process") for word in given[1]):
                self.found.append(f"starts {given[1]}")
        elif event in ("os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"):
            self.found.append(f"{event} {given}")


WATCHED = Watched()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.chdir(tmp_path)
    WATCHED.found, WATCHED.folder = [], str(tmp_path)
    yield WATCHED.found
    WATCHED.folder = ""


def refusals(
    read: Callable[[Path], object], contents: dict[str, bytes], suffix: str, folder: Path
) -> dict[str, str]:
    """What each file is refused with; one that is read, or ends in another error, is named so."""

    def refused(name: str, content: bytes) -> str:
        path = folder / f"{name.replace('/', ' ').replace(' ', '_')}{suffix}"
        path.write_bytes(content)
        try:
            read(path)
        except GourmetError as exc:
            path.unlink()
            return str(exc)
        except BaseException as exc:
            return f"NO SENTENCE: {exc!r}"
        return "READ"

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(contents, pool.map(refused, contents, contents.values()), strict=True))


def asked(path: Path) -> None:
    """Open an ONNX file and ask it about a picture, as `gourmet new` does."""
    labels = ("a", "b", "c")
    new_system.as_given(PictureClassifier("flowers", "", "", "flowers_onnx", labels, path), path)


@pytest.fixture(scope="module")
def pickles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """The file that some of them would write, and all of them."""
    victim = tmp_path_factory.mktemp("pickles") / "victim"
    contents = hostile_files.pickles(victim)
    victim.unlink(missing_ok=True)
    return victim, contents


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "count"), [(".pth", 24), (".safetensors", 10), (".onnx", 16)])
def test_fifty_hostile_files_are_refused_in_a_sentence_and_do_nothing(
    suffix: str, count: int, tmp_path: Path, pickles: tuple[Path, dict[str, bytes]], watched: list[str]
) -> None:
    victim, contents = pickles
    if suffix != ".pth":
        contents = hostile_files.safetensors() if suffix == ".safetensors" else hostile_files.networks()
    assert len(contents) == count
    found = refusals(asked if suffix == ".onnx" else load_tensors, contents, suffix, tmp_path)
    assert {name: said for name, said in found.items() if said.startswith(("READ", "NO SENTENCE"))} == {}
    assert all(said.isprintable() for said in found.values()), "nothing of a file speaks to the terminal"
    assert watched == []
    assert list(tmp_path.iterdir()) == []
    assert not victim.exists()


@pytest.mark.parametrize("name", ["stride 0", "deflated gigabyte", "zip that exec"])
def test_weights_cost_no_more_than_their_size_allows(
    name: str, tmp_path: Path, pickles: tuple[Path, dict[str, bytes]], watched: list[str]
) -> None:
    victim, contents = pickles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refusals(load_tensors, {name: contents[name]}, ".pth", tmp_path)[name]
    assert "cannot be read as a file of weights" in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes of this process"
    assert watched == []
    assert list(tmp_path.iterdir()) == []
    assert not victim.exists()


def test_an_onnx_loop_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_system, "OPENING_S", 8.0)
    path = tmp_path / "loop.onnx"
    path.write_bytes(hostile_files.without_end())
    began = time.monotonic()
    with pytest.raises(GourmetError, match="it took too long"):
        asked(path)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unknown operator", "Owned"),
        ("weights in /etc", "its weights lie in other files"),
        ("weights in memory", "its weights lie in other files"),
        ("a name with code", "a name may have at most 128 letters"),
        ("other inputs", "takes one float tensor [N, 3, side, side]"),
        ("noise", ""),
    ],
)
def test_a_network_that_cannot_be_served_is_refused_with_the_reason(
    name: str, reason: str, tmp_path: Path, watched: list[str]
) -> None:
    said = refusals(asked, {name: hostile_files.networks()[name]}, ".onnx", tmp_path)[name]
    assert "cannot be read as ONNX" in said
    assert reason in said
    assert watched == []
