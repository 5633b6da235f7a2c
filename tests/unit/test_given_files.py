"""Files that people pass to a verb: nothing in them runs, and one that is something else is refused."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import helper
from torch import nn

from gourmet.bench.inputs import InputRows
from gourmet.bench.roofline import count
from gourmet.bench.workload import of_onnx
from gourmet.cli import main
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.errors import GourmetError
from gourmet.evaluation.system_parts import BadData
from gourmet.export.given_onnx import GivenOnnx
from gourmet.generation import package
from gourmet.systems.captioner.data import decoded, photos
from gourmet.training.files import load_tensors

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

VERBS = {
    "new": "new flowers --labels a,b --weights {file} --architecture torchvision:resnet18 --to {folder}",
    "deployer": "deployer --onnx --config torchvision:resnet18 --checkpoint {file} --save-dir {folder}",
    "deploy": "deploy food11 --format onnx --weights {file} --data {folder} --to {folder}",
    "evaluate": "evaluate food11 --weights {file} --data {folder}",
    "train": "train digits --init {file} --out {folder}/run --limit 20",
}


class WritesWhenOpened(nn.Module):
    """TorchScript that writes a file as it is opened."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        self.victim = victim
        self.written = torch.zeros(1)

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.victim, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.victim = state[0]
        self.training = state[1]
        mapped = torch.from_file(self.victim, True, 5, dtype=torch.uint8)
        self.written = mapped.copy_(torch.tensor([112, 119, 110, 101, 100]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class Calls:
    """Unpickling it calls something."""

    def __init__(self, called: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = called, arguments

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.mark.parametrize("verb", VERBS)
def test_unknown_torchscript_is_refused_before_it_is_opened(
    verb: str, systems_folder: Path, tmp_path: Path
) -> None:
    victim, file = tmp_path / "sitecustomize.py", tmp_path / "best.pth"
    torch.jit.script(WritesWhenOpened(str(victim))).save(str(file))  # type: ignore[no-untyped-call]
    done = CliRunner().invoke(main, VERBS[verb].format(file=file, folder=tmp_path).split())
    assert done.exit_code == 1, done.output
    assert f"{file} is TorchScript, a program that would run when it is opened" in done.output
    assert not victim.exists()


def saved(content: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


@pytest.mark.promise("SECURITY 13")
@pytest.mark.parametrize("form", ["zip", "old", "bare pickle"])
@pytest.mark.parametrize("called", [exec, open, torch.from_file])
def test_a_pickle_with_code_is_refused_without_running_it(
    form: str, called: Callable[..., Any], tmp_path: Path
) -> None:
    victim, file = tmp_path / "victim", tmp_path / "best.pth"
    arguments = {
        exec: (f"open({str(victim)!r}, 'w')",),
        open: (str(victim), "w"),
        torch.from_file: (str(victim), True, 5),
    }[called]
    weights = {"w": Calls(called, *arguments)}
    file.write_bytes(
        pickle.dumps(weights, protocol=2)
        if form == "bare pickle"
        else saved(weights, _use_new_zipfile_serialization=form == "zip")
    )
    with pytest.raises(GourmetError, match="cannot be read as a file of weights"):
        load_tensors(file)
    assert not victim.exists()


def test_weights_that_are_something_else_are_refused_with_the_reason(tmp_path: Path) -> None:
    plain = saved(nn.Linear(3, 2).state_dict())
    contents = {
        "a.pth": (b"", "torch can read"),
        "b.pth": (bytes(range(256)) * 8, "torch can read"),
        "c.pth": (plain[: len(plain) // 2], "cannot be read as a file of weights"),
        "d.pth": (saved([1, 2]), "no dictionary of tensors by name"),
        "e.pth": (saved(nn.Linear(3, 2)), "holds more than tensors"),
        "f.pth": (saved({"\x1b]0;owned\x07": torch.zeros(3)}), "control characters"),
        "g.safetensors": (b"no header", "cannot be read as a file of weights"),
    }
    for name, (content, reason) in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GourmetError, match=reason):
            load_tensors(tmp_path / name)


# ---- ONNX


def network(*nodes: Any, given: Any = ("n", 3, 8, 8), **options: Any) -> bytes:
    """A classifier of pictures of eight pixels; `nodes` go before what answers."""
    value, kind = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    last = helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)
    graph = helper.make_graph(
        [*nodes, last], "g", [value("x", kind, given)], [value("y", kind, ("n", 3))], **options
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("some.where", 1)]
    return bytes(helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString())


def with_weights_in(location: str) -> bytes:
    kind = onnx.TensorProto.FLOAT
    tensor = onnx.TensorProto(name="w", data_type=kind, dims=[3], data_location=onnx.TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", "0"), ("length", "12")):
        tensor.external_data.add(key=key, value=text)
    return network(initializer=[tensor])


ELSEWHERE = ["/etc/hostname", "../../../../etc/hostname", "*/_ORT_MEM_ADDR_/*"]
NETWORKS = {
    "noise": (bytes(range(256)) * 8, ""),
    "unknown operator": (network(helper.make_node("Owned", ["x"], ["q"])), "Owned"),
    "custom operator": (network(helper.make_node("Run", ["x"], ["q"], domain="some.where")), "Run"),
    "other inputs": (network(given=("n", 2)), r"takes one float tensor \[N, 3, side, side\]"),
    **{name: (with_weights_in(name), "its weights lie in other files") for name in ELSEWHERE},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_cannot_be_served_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    content, reason = NETWORKS[name]
    (path := tmp_path / "n.onnx").write_bytes(content)
    with pytest.raises(GourmetError, match=f"cannot be read as ONNX: .*{reason}"):
        GivenOnnx(path)


def reference(path: Path, **values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the answer of an ONNX file, computed as in `gourmet bench run --reference`."""
    inputs = tuple(TensorSpec(name, name, array.shape) for name, array in values.items())
    info = ModelInfo("m", (), (), max_batch_size=1)
    rows = InputRows(info, inputs, {name: [array] for name, array in values.items()}, "")
    return dict(of_onnx(path, rows)[0])


@pytest.mark.parametrize("location", ELSEWHERE)
def test_a_reference_reads_nothing_beside_its_file(location: str, tmp_path: Path) -> None:
    (path := tmp_path / "n.onnx").write_bytes(with_weights_in(location))
    with pytest.raises(GourmetError, match="its weights lie in other files"):
        reference(path, FP32=np.zeros((3, 8, 8), np.float32))


def test_a_reference_supports_every_number_type_and_refuses_texts(tmp_path: Path) -> None:
    def answered(**values: np.ndarray[Any, Any]) -> dict[str, Any]:
        given = [
            helper.make_tensor_value_info(name, getattr(onnx.TensorProto, name), ["n", 2]) for name in values
        ]
        out = [
            helper.make_tensor_value_info(f"{name}/y", getattr(onnx.TensorProto, name), ["n", 2])
            for name in values
        ]
        nodes = [helper.make_node("Identity", [name], [f"{name}/y"]) for name in values]
        graph = helper.make_graph(nodes, "g", given, out)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / "n.onnx")
        return reference(tmp_path / "n.onnx", **values)

    result = answered(FLOAT16=np.ones(2, np.float16), INT64=np.arange(2), BOOL=np.array([True, False]))
    assert {name: array.tolist() for name, array in result.items()} == {
        "FLOAT16/y": [1.0, 1.0],
        "INT64/y": [0, 1],
        "BOOL/y": [True, False],
    }
    with pytest.raises(GourmetError, match="numbers alone are compared"):
        answered(STRING=np.array([b"soup", b"tea"], np.object_))


def test_roofline_refuses_a_file_that_is_not_onnx(tmp_path: Path) -> None:
    (path := tmp_path / "n.onnx").write_bytes(b"noise")
    with pytest.raises(GourmetError, match=r"n\.onnx is not a valid ONNX"):
        count(path)


# ---- archives


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\3\4" + bytes(100)])
def test_an_invalid_package_is_refused(content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / package.FILE).write_bytes(content)
    with pytest.raises(GourmetError, match="Deploy the model again"):
        package.read_package(path)


def captioned(folder: Path, photo: bytes) -> Path:
    (folder / "splits").mkdir()
    (folder / "splits" / "dev.txt").write_text("a.jpg\n")
    (folder / "captions.tsv").write_text("a.jpg\ta dog\n")
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        archive.writestr("a.jpg", photo)
    return folder


def test_a_photo_to_learn_from_is_one_that_may_be_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name says: Pillow takes some fifty formats, and starts a program for one of them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho > {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    data = captioned(tmp_path, eps)
    with pytest.raises(BadData, match=r"a\.jpg cannot be used"):
        list(decoded(data, photos(data, "validation"), 32))
    assert not (tmp_path / "started").exists()


def test_photos_that_are_not_a_zip_are_refused(tmp_path: Path) -> None:
    data = captioned(tmp_path, b"")
    (data / "photos.zip").write_bytes(b"no zip")
    with pytest.raises(BadData, match=r"photos\.zip cannot be read"):
        photos(data, "validation")
