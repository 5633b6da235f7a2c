"""Files of weights and networks that somebody might hand over, made to do harm to who reads them."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import onnx
import torch
from onnx import helper
from support.hostile_inputs import with_zeros
from torch import nn

FLOAT: Final = onnx.TensorProto.FLOAT


class _Writing(nn.Module):
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


def torchscript_that_writes(path: Path, victim: Path) -> Path:
    torch.jit.script(_Writing(str(victim))).save(str(path))  # type: ignore[no-untyped-call]
    return path


# ---- pickles, as torch.save writes them


class _Calls:
    """Unpickling it calls something."""

    def __init__(self, called: Callable[..., Any], *given: Any) -> None:
        self._reduced = called, given

    def __reduce__(self) -> Any:
        return self._reduced


def saved(found: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(found, buffer, **options)
    return buffer.getvalue()


def _deep(levels: int) -> Any:
    found: Any = {}
    for _ in range(levels):
        found = {"state_dict": found}
    return found


def _rezipped(content: bytes, without: str = "", **changed: bytes) -> bytes:
    """The archive, deflated, some of its files with other contents."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for name in old.namelist():
            if name == without:
                continue
            key = name.rpartition("/")[2].replace(".", "_")
            new.writestr(name, changed.get(key, old.read(name)))
    return buffer.getvalue()


def _deflated_zeros(numbers: int) -> bytes:
    """So many of them, as torch.save writes them."""
    few = saved({"w": torch.zeros(77)})
    with zipfile.ZipFile(io.BytesIO(few)) as archive:
        about, place = archive.read("archive/data.pkl"), "archive/data/0"
    about = about.replace(b"KM", b"J" + struct.pack("<i", numbers))  # a byte as a number, and four
    return with_zeros(_rezipped(few, without=place, data_pkl=about), place, 4 * numbers)


def _tar(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("pickle", "storages", "tensors"):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def pickles(victim: Path) -> dict[str, bytes]:
    """Those that run something would write `victim`."""
    weights = nn.Linear(3, 2).state_dict()
    code = f"open({str(victim)!r}, 'w').write('owned')"
    runs = {
        "exec": _Calls(exec, code),
        "eval": _Calls(eval, code),
        "opens": _Calls(open, str(victim), "w"),
        "mapped": _Calls(torch.from_file, str(victim), True, 5),
        "touches": _Calls(Path.touch, victim),
    }
    plain = saved(weights)
    laughs: Any = ["ha"]
    for _ in range(40):
        laughs = [laughs] * 8
    return {
        **{f"zip that {name}": saved({"w": each}) for name, each in runs.items()},
        "old format that runs": saved({"w": runs["exec"]}, _use_new_zipfile_serialization=False),
        "bare pickle that runs": pickle.dumps({"w": runs["exec"]}),
        "tar that runs": _tar(pickle.dumps(runs["exec"])),
        "whole network": saved(nn.Linear(3, 2)),
        "stride 0": saved({"w": torch.zeros(1).expand(1 << 39)}),
        "views of one storage": saved({str(n): torch.zeros(1 << 18).expand(64, -1) for n in range(64)}),
        "deflated gigabyte": _deflated_zeros(175_000_000),
        "lists of lists": saved(laughs),
        "deep dictionaries": _rezipped(plain, data_pkl=b"\x80\x02" + b"}X\x01\0\0\0a" * 100_000 + b"."),
        "empty": b"",
        "noise": bytes(range(256)) * 8,
        "cut short": plain[: len(plain) // 2],
        "nested": saved(_deep(200)),
        "a list": saved([1, 2]),
        "numbers": saved({"w": 3}),
        "sparse": saved({"w": torch.eye(3).to_sparse()}),
        "on no device": saved({"w": torch.zeros(3, device="meta")}),
        "a name of terminal codes": saved({"\x1b]0;owned\x07": torch.zeros(3)}),
        "many members": _many_members(),
    }


def _many_members() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"a/{number}", b"")
    return buffer.getvalue()


# ---- safetensors


def _safetensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def safetensors() -> dict[str, bytes]:
    def described(metadata: str, **tensor: Any) -> bytes:
        one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **tensor}
        return _safetensors(json.dumps({"__metadata__": {"about": metadata}, "w": one}).encode(), bytes(4))

    return {
        "length of everything": _safetensors(b"{}", length=(1 << 63) - 1),
        "no header": b"",
        "deep header": _safetensors(b'{"a":' * 100_000),
        "pickle as metadata": described("\x80\x04cos\nsystem\n"),
        "deep metadata": described("[" * 200_000),
        "list as metadata": described("[1, 2]"),
        "out of the file": described("{}", data_offsets=[0, 1 << 40], shape=[1 << 38]),
        "negative shape": described("{}", shape=[-1]),
        "shape that overflows": described("{}", shape=[1 << 33, 1 << 33]),
        "unknown type": described("{}", dtype="CODE"),
    }


# ---- ONNX


def network(
    *nodes: Any, given: Any = ("n", 3, 8, 8), scores: Any = ("n", 3), output: str = "y", **options: Any
) -> onnx.ModelProto:
    """A classifier of pictures of eight pixels; `nodes` go before what answers."""
    value = helper.make_tensor_value_info
    last = helper.make_node("ReduceMean", ["x"], [output], axes=[2, 3], keepdims=0)
    graph = helper.make_graph(
        [*nodes, last], "g", [value("x", FLOAT, given)], [value(output, FLOAT, scores)], **options
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("some.where", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def _constant(name: str, kind: int, values: list[Any], shape: list[int] | None = None) -> Any:
    tensor = helper.make_tensor(name, kind, [] if shape is None else shape, values)
    return helper.make_node("Constant", [], [name], value=tensor)


def without_end() -> bytes:
    value, integer, boolean = helper.make_tensor_value_info, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["again"]), helper.make_node("Identity", ["s"], ["t"])],
        "body",
        [value("i", integer, []), value("on", boolean, []), value("s", FLOAT, [1])],
        [value("again", boolean, []), value("t", FLOAT, [1])],
    )
    start = _constant("start", FLOAT, [0.0], [1])
    loop = helper.make_node(
        "Loop", [_constant("most", integer, [2**62]).output[0], "go", "start"], ["r"], body=body
    )
    first = (_constant("most", integer, [2**62]), _constant("go", boolean, [True]), start, loop)
    model = network(*first, helper.make_node("Add", ["r", "r"], ["rr"]))
    model.graph.node[-1].CopyFrom(helper.make_node("ReduceMean", ["z"], ["y"], axes=[2, 3], keepdims=0))
    model.graph.node.insert(len(model.graph.node) - 1, helper.make_node("Add", ["x", "rr"], ["z"]))
    return bytes(model.SerializeToString())


def functions_of_functions(levels: int = 40) -> bytes:
    """Each calls the next twice, so that the last would be looked at a trillion times."""
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("some.where", 1)]

    def function(number: int) -> Any:
        calls = [("a", "b")] if number == levels else [("a", "c"), ("c", "b")]
        kind, domain = ("Relu", "") if number == levels else (f"f{number + 1}", "some.where")
        nodes = [helper.make_node(kind, [given], [found], domain=domain) for given, found in calls]
        return helper.make_function("some.where", f"f{number}", ["a"], ["b"], nodes, domains)

    model = network(helper.make_node("f0", ["x"], ["z"], domain="some.where"))
    model.graph.node[-1].input[0] = "z"
    model.functions.extend(function(number) for number in range(levels + 1))
    return bytes(model.SerializeToString())


def of_an_unknown_type() -> bytes:
    model = network(initializer=[onnx.TensorProto(name="w", data_type=9999, dims=[3])])
    return bytes(model.SerializeToString())


def _external(location: str, offset: str = "0") -> bytes:
    tensor = onnx.TensorProto(name="w", data_type=FLOAT, dims=[3], data_location=onnx.TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", offset), ("length", "12")):
        tensor.external_data.add(key=key, value=text)
    return bytes(network(initializer=[tensor]).SerializeToString())


def networks() -> dict[str, bytes]:
    shape = _constant("s", onnx.TensorProto.INT64, [1 << 40], [1])
    large = helper.make_node("ConstantOfShape", ["s"], ["l"])
    sum_of = helper.make_node("ReduceSum", ["l"], ["m"])
    adds = helper.make_node("Add", ["x", "m"], ["z"])
    memory = network(shape, large, sum_of, adds)
    memory.graph.node[-1].input[0] = "z"
    found = {
        "asks for terabytes": memory,
        "unknown operator": network(helper.make_node("Owned", ["x"], ["q"])),
        "operator of somewhere": network(helper.make_node("Run", ["x"], ["q"], domain="some.where")),
        "a million pixels a side": network(given=("n", 3, 1 << 20, 1 << 20)),
        "too many scores": network(scores=("n", 1 << 40)),
        "other inputs": network(given=("n", 2)),
        "a name with code": network(output='"); import os #'),
        "a long name": network(output="y" * 10_000),
        "no graph": onnx.ModelProto(),
    }
    plain = bytes(network().SerializeToString())
    return {
        **{name: bytes(model.SerializeToString()) for name, model in found.items()},
        "weights in /etc": _external("/etc/hostname"),
        "weights above": _external("../../../../etc/hostname"),
        "weights in memory": _external("*/_ORT_MEM_ADDR_/*", "4096"),
        "ORT's own format": b"\x18\0\0\0ORTM" + bytes(200),
        "cut short": plain[: len(plain) // 2],
        "noise": bytes(range(256)) * 8,
        "empty": b"",
    }
