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

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from support import hostile_files
from support.hostile_files import torchscript_that_writes

from gourmet import repository
from gourmet.cli import main
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.errors import GourmetError
from gourmet.measure import onnx_process, task
from gourmet.measure.inputs import InputRows
from gourmet.pictures.classifier import PictureClassifier
from gourmet.roofline import counting_process
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
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of what is imported only here
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


def compared(path: Path) -> object:
    """Ask an ONNX file what it answers a row, as `gourmet bench run --reference` does."""
    pixels = TensorSpec("x", "FP32", (3, 8, 8))
    values = {"x": [np.zeros((3, 8, 8), np.float32)]}
    return task.of_onnx(path, InputRows(ModelInfo("m", (), (), max_batch_size=1), (pixels,), values, ""))


def counted(path: Path) -> object:
    """Count an ONNX file's layers, as `gourmet roofline` does."""
    return counting_process.counted(path, {})


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


# Names and sizes of a reference are those of the model that it is compared with.
ANSWERED = {"a name with code", "a long name", "too many scores"}


@pytest.mark.slow
@pytest.mark.parametrize("read", [compared, counted])
def test_a_reference_and_a_counted_network_do_nothing_either(
    read: Callable[[Path], object], tmp_path: Path, watched: list[str]
) -> None:
    """What counts layers runs none of them: it may count those that no runtime has."""
    found = refusals(read, hostile_files.networks(), ".onnx", tmp_path)
    assert read is counted or {name for name, said in found.items() if said == "READ"} == ANSWERED
    assert not [said for said in found.values() if said.startswith("NO SENTENCE")]
    assert all(said.isprintable() for said in found.values())
    assert watched == []


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (compared, hostile_files.without_end()),
        (compared, hostile_files.functions_of_functions()),
        (counted, hostile_files.functions_of_functions()),
    ],
)
def test_a_reference_or_a_counted_network_without_end_is_ended(
    read: Callable[[Path], object], content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_process, "OPENING_S", 5.0)
    monkeypatch.setattr(counting_process, "COUNTING_S", 5.0)
    (path := tmp_path / "n.onnx").write_bytes(content)
    began = time.monotonic()
    with pytest.raises(GourmetError, match=f"{path}.*: it took too long"):
        read(path)
    assert time.monotonic() - began < 25


def test_a_reference_reads_nothing_beside_its_file(tmp_path: Path, watched: list[str]) -> None:
    for name in ("weights in /etc", "weights above", "weights in memory"):
        said = refusals(compared, {name: hostile_files.networks()[name]}, ".onnx", tmp_path)[name]
        assert "its weights lie in other files" in said
    assert watched == []


def test_a_network_of_an_unknown_type_is_not_counted_and_says_so(tmp_path: Path) -> None:
    said = refusals(counted, {"unknown": hostile_files.of_an_unknown_type()}, ".onnx", tmp_path)["unknown"]
    assert said.startswith(str(tmp_path))
    assert "cannot be read as ONNX" in said


def test_a_reference_answers_numbers_of_any_type_and_says_that_texts_are_not_compared(tmp_path: Path) -> None:
    def answered(**values: np.ndarray[Any, Any]) -> dict[str, Any]:
        kinds = {name: getattr(onnx.TensorProto, name) for name in values}
        given = [onnx.helper.make_tensor_value_info(name, kind, ["n", 2]) for name, kind in kinds.items()]
        out = [
            onnx.helper.make_tensor_value_info(f"{name}/y", kind, ["n", 2]) for name, kind in kinds.items()
        ]
        nodes = [onnx.helper.make_node("Identity", [name], [f"{name}/y"]) for name in kinds]
        graph = onnx.helper.make_graph(nodes, "g", given, out)
        domains = [onnx.helper.make_opsetid("", 17)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=domains, ir_version=8), tmp_path / "n.onnx")
        inputs = tuple(TensorSpec(name, name, (2,)) for name in values)
        info = ModelInfo("m", (), (), max_batch_size=1)
        rows = InputRows(info, inputs, {name: [each] for name, each in values.items()}, "")
        return dict(task.of_onnx(tmp_path / "n.onnx", rows)[0])

    found = answered(FLOAT16=np.ones(2, np.float16), INT64=np.arange(2), BOOL=np.array([True, False]))
    assert {name: each.tolist() for name, each in found.items()} == {
        "FLOAT16/y": [1.0, 1.0],
        "INT64/y": [0, 1],
        "BOOL/y": [True, False],
    }
    with pytest.raises(GourmetError, match="numbers alone are compared"):
        answered(STRING=np.array([b"soup", b"tea"], np.object_))
