"""Files and weights that people pass to a verb: nothing in them runs, and what does not fit is refused."""

from __future__ import annotations

import importlib
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
from onnx import helper
from support.cli import said
from torch import nn

from gourmet.bench.inputs import InputRows
from gourmet.bench.workload import of_onnx
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.errors import GourmetError
from gourmet.evaluation.system_parts import BadData
from gourmet.export.given_onnx import GivenOnnx
from gourmet.export.torchvision_network import build
from gourmet.generation import package
from gourmet.systems.captioner.data import decoded, photos
from gourmet.systems.digits.network import DigitsNetwork
from gourmet.systems.food11.network import STARTING_WEIGHTS, Food11Network
from gourmet.training.files import load_tensors, save_tensors

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
def test_unknown_torchscript_is_refused_unopened(verb: str, systems_folder: Path, tmp_path: Path) -> None:
    victim, file = tmp_path / "sitecustomize.py", tmp_path / "best.pth"
    torch.jit.script(WritesWhenOpened(str(victim))).save(str(file))  # type: ignore[no-untyped-call]
    output = said(*VERBS[verb].format(file=file, folder=tmp_path).split(), status=1)
    assert f"{file} is TorchScript, a program that would run when it is opened" in output
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
    whole = saved(weights, _use_new_zipfile_serialization=form == "zip")
    file.write_bytes(pickle.dumps(weights, protocol=2) if form == "bare pickle" else whole)
    with pytest.raises(GourmetError, match="cannot be read as a file of weights"):
        load_tensors(file)
    assert not victim.exists()


def test_weights_that_are_something_else_are_refused_with_the_reason(tmp_path: Path) -> None:
    plain = saved(nn.Linear(3, 2).state_dict())
    contents = {
        "a.pth": (b"", "torch can read"),
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


NETWORKS = {
    "noise": (bytes(range(256)) * 8, ""),
    "unknown operator": (network(helper.make_node("Owned", ["x"], ["q"])), "Owned"),
    "custom operator": (network(helper.make_node("Run", ["x"], ["q"], domain="some.where")), "Run"),
    "other inputs": (network(given=("n", 2)), r"takes one float tensor \[N, 3, side, side\]"),
    "weights elsewhere": (with_weights_in("/etc/hostname"), "its weights lie in other files"),
    "weights above": (with_weights_in("../../../../etc/hostname"), "its weights lie in other files"),
    "weights in memory": (with_weights_in("*/_ORT_MEM_ADDR_/*"), "its weights lie in other files"),
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


def test_a_reference_reads_nothing_beside_its_file(tmp_path: Path) -> None:
    (path := tmp_path / "n.onnx").write_bytes(with_weights_in("/etc/hostname"))
    with pytest.raises(GourmetError, match="its weights lie in other files"):
        reference(path, FP32=np.zeros((3, 8, 8), np.float32))


def test_a_reference_supports_every_number_type_and_refuses_texts(tmp_path: Path) -> None:
    def described(name: str, suffix: str = "") -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name + suffix, getattr(onnx.TensorProto, name), ["n", 2])

    def answered(**values: np.ndarray[Any, Any]) -> dict[str, Any]:
        nodes = [helper.make_node("Identity", [name], [f"{name}/y"]) for name in values]
        graph = helper.make_graph(nodes, "g", [*map(described, values)], [described(n, "/y") for n in values])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / "n.onnx")
        return reference(tmp_path / "n.onnx", **values)

    result = answered(FLOAT16=np.ones(2, np.float16), INT64=np.arange(2), BOOL=np.array([True, False]))
    given = {name: array.tolist() for name, array in result.items()}
    assert given == {"FLOAT16/y": [1.0, 1.0], "INT64/y": [0, 1], "BOOL/y": [True, False]}
    with pytest.raises(GourmetError, match="numbers alone are compared"):
        answered(STRING=np.array([b"soup", b"tea"], np.object_))


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
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    """Whatever its name says: Pillow takes some fifty formats, and starts a program for one of them."""
    program("gs", f"echo > {tmp_path}/started")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    data = captioned(tmp_path, eps)
    with pytest.raises(BadData, match=r"a\.jpg cannot be used"):
        list(decoded(data, photos(data, "validation"), 32))
    assert not (tmp_path / "started").exists()


# Our own networks
@pytest.fixture(scope="module")
def networks() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"digits": DigitsNetwork().eval(), "food11": Food11Network(pretrained=True).eval()}


def load(system: str, path: Path) -> Any:
    return importlib.import_module(f"gourmet.systems.{system}.network").load(path)


@pytest.mark.parametrize("system", ["digits", "food11"])
def test_weights_come_back_as_they_were_saved(system: str, networks: Any, tmp_path: Path) -> None:
    network = networks[system]
    save_tensors(tmp_path / "w.safetensors", network.state_dict(), {**network.about, "epoch": 3})
    again, about = load(system, tmp_path / "w.safetensors")
    assert about["epoch"] == 3
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize(
    ("system", "change", "complaint"),
    [
        ("digits", {"system": "food11"}, "its system is food11, not digits"),
        ("food11", {"architecture": "resnet18"}, "its architecture is resnet18, not mobilenet_v1"),
        ("food11", {"labels": ["Bread"]}, r"its labels is \['Bread'\], not \['Bread', 'Dairy"),
    ],
)
def test_weights_of_another_network_are_refused_by_name(
    system: str, change: dict[str, object], complaint: str, networks: Any, tmp_path: Path
) -> None:
    network = networks[system]
    save_tensors(tmp_path / "w.safetensors", network.state_dict(), {**network.about, **change})
    with pytest.raises(GourmetError, match=rf"w\.safetensors .*{complaint}"):
        load(system, tmp_path / "w.safetensors")


@torch.no_grad()
def test_the_scale_of_the_ink_does_not_change_the_answer(networks: Any) -> None:
    network, ink = networks["digits"], torch.rand(3, 1, 28, 28)
    ink[:, :, 0, 0], ink[:, :, 0, 1] = 0.0, 1.0
    expected = network(ink)
    for other in (255 * ink, (ink - 0.1307) / 0.3081):
        torch.testing.assert_close(network(other), expected, atol=1e-4, rtol=1e-4)
    assert network(torch.zeros(2, 1, 28, 28)).isfinite().all(), "of a blank image"


def test_damaged_starting_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "starting_weights.safetensors"
    damaged.write_bytes(STARTING_WEIGHTS.read_bytes()[:-1] + b"x")
    monkeypatch.setattr("gourmet.systems.food11.network.STARTING_WEIGHTS", damaged)
    with pytest.raises(GourmetError, match="is damaged: its sha256 is"):
        Food11Network(pretrained=True)


def test_weights_of_torchvision_that_cannot_be_downloaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(GourmetError, match=r"mobilenet_v2-\w+\.pth cannot be downloaded .* without --pretra"):
        build("torchvision:mobilenet_v2", 3, pretrained=True)
