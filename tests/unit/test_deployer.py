"""`gourmet deployer`: what each flag does, and that a refusal leaves nothing behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file
from support.stopping import everything

from gourmet.cli import main
from gourmet.client.model_config import as_pbtxt
from gourmet.errors import GourmetError
from gourmet.repository import read_config
from gourmet.serving.preflight import free_ports
from gourmet.tasks.classification import nvidia_networks as networks
from gourmet.tasks.classification.deployer_model import DeployerOptions, config_of
from gourmet.tasks.classification.formats import FORMATS

# Written in a few seconds; and one with batch norms, for what is said of checkpoints.
SMALL = "torchvision:squeezenet1_1"
NORMED = "torchvision:shufflenet_v2_x0_5"
Deployer = Callable[..., Result]


@pytest.fixture
def deployer(tmp_path: Path) -> Deployer:
    """Runs `gourmet deployer`, with a repository of its own and a small network."""

    def run(*flags: object, network: tuple[object, ...] = ("--config", SMALL, "--batch_size", 2)) -> Result:
        command = ["deployer", *flags, "--save-dir", tmp_path / "models", "--", *network]
        return CliRunner().invoke(main, [str(word) for word in command])

    return run


def files(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in everything(folder).items() if content is not None}


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    return dict(networks.build(NORMED, 1000, seed).module.state_dict())


@pytest.mark.parametrize(
    ("flag", "half", "file", "backend"),
    [
        ("--ts-script", False, "model.pt", "pytorch"),
        pytest.param("--ts-trace", True, "model.pt", "pytorch", marks=pytest.mark.slow),
        pytest.param("--onnx", False, "model.onnx", "onnxruntime", marks=pytest.mark.slow),
        ("--onnx", True, "model.onnx", "onnxruntime"),
    ],
)
def test_a_network_becomes_a_model_that_answers_as_it_does(
    deployer: Deployer, tmp_path: Path, flag: str, half: bool, file: str, backend: str
) -> None:
    network = ("--config", SMALL, "--batch_size", 3, *(["--fp16"] if half else []))
    done = deployer(flag, "--triton-model-name", "small", network=network)
    assert done.exit_code == 0, done.output
    model = tmp_path / "models" / "small"
    assert done.output.splitlines()[-1].endswith(f"{flag[2:]} of {SMALL}: {model / '1'}")
    assert set(files(model)) == {"config.pbtxt", f"1/{file}", "1/manifest.json"}
    config = read_config(model)
    assert config.backend == backend
    assert config.platform == {"pytorch": "pytorch_libtorch", "onnxruntime": "onnxruntime_onnx"}[backend]
    kind = "TYPE_FP16" if half else "TYPE_FP32"
    (image,), (answer,) = config.input, config.output
    kinds = config.DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"].enum_type
    assert (image.name, list(image.dims)) == ("input__0", [3, 224, 224])
    assert (answer.name, list(answer.dims)) == ("output__0", [1000])
    assert {image.data_type, answer.data_type} == {kinds.values_by_name[kind].number}
    assert image.format == image.FORMAT_NCHW
    manifest = json.loads((model / "1" / "manifest.json").read_text())
    assert manifest["training"] == {"weights": "none: initialised at random from seed 0"}
    assert "initialised at random from seed 0" in done.output
    measured = {check["what"]: check for check in manifest["gate"]}
    assert set(measured) == {*(f"largest difference, batch {n}" for n in (1, 2, 3)), "top-1 agreement"}
    assert measured["top-1 agreement"]["measured"] == "6 of 6"
    assert manifest["input"] == f"{'float16' if half else 'float32'} [N, 3, 224, 224]"


def test_each_flag_of_serving_is_seen_in_the_config(deployer: Deployer, tmp_path: Path) -> None:
    flags = "--triton-no-cuda --triton-max-batch-size 64 --triton-dyn-batching-delay 1.5"
    name = "--triton-engine-count 3 --triton-model-name other --triton-model-version 7 --labels"
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"kind {number}\n" for number in range(1000)))
    done = deployer("--ts-trace", *flags.split(), *name.split(), labels)
    assert done.exit_code == 0, done.output
    model = tmp_path / "models" / "other"
    config = read_config(model)
    assert (model / "7" / "model.pt").exists()
    assert config.name == "other"
    assert config.max_batch_size == 64
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    assert list(config.dynamic_batching.preferred_batch_size) == [32, 64]
    (group,) = config.instance_group
    assert (group.count, group.kind) == (3, group.KIND_CPU)
    assert config.output[0].label_filename == "labels.txt"
    assert (model / "labels.txt").read_text() == labels.read_text()
    assert json.loads(config.parameters["labels"].string_value)[999] == "kind 999"


def described(*, engine: bool = False, **flags: Any) -> str:
    form = replace(FORMATS["onnx"], platform="tensorrt_plan") if engine else FORMATS["onnx"]
    return as_pbtxt(config_of(DeployerOptions("onnx", SMALL, **flags), form, size=224, outputs=5))


def test_without_a_batch_the_rows_are_a_dimension() -> None:
    text = described(max_batch_size=0)
    assert "dims: [-1, 3, 224, 224]" in text
    assert "format" not in text


def test_an_engine_is_refused_in_one_sentence(deployer: Deployer, tmp_path: Path) -> None:
    flags = "--trt --trt-fp16 --max_workspace_size 2147483648 --capture-cuda-graph 0"
    done = deployer(*flags.split())
    assert done.exit_code == 1
    assert "built on the GPU that runs it" in done.output.splitlines()[-1]
    assert not (tmp_path / "models").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("flags", [(), ("--fp16",), ("--trt-fp16",)])
def test_an_engine_is_built_for_its_gpu_and_answers_as_the_network(
    deployer: Deployer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    tensorrt = pytest.importorskip("tensorrt", reason="no package tensorrt here")
    if flags == ("--trt-fp16",) and not hasattr(tensorrt.BuilderFlag, "FP16"):
        pytest.skip(f"TensorRT {tensorrt.__version__} has no --trt-fp16")
    done = deployer("--trt", "--capture-cuda-graph", "0", *flags)
    assert done.exit_code == 0, done.output
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    file = f"model_{capability}.plan"
    assert (tmp_path / "models" / "model" / "1" / file).is_file()
    config = read_config(tmp_path / "models" / "model")
    assert dict(config.cc_model_filenames) == {capability: file}
    assert not config.optimization.cuda.graphs


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "give one of --ts-script, --ts-trace, --onnx, --trt: 0 are given"),
        (("--onnx", "--trt"), "2 are given"),
        (("--trt", "--triton-no-cuda"), "an engine runs on a GPU alone"),
        (
            ("--onnx", "--triton-max-batch-size", 0, "--triton-dyn-batching-delay", 2),
            "delay needs a --triton-max-batch-size of at least 1",
        ),
        (("--onnx", "--triton-model-name", "../out"), "not a valid name of a folder"),
        (
            ("--onnx", "--labels", "a,b,c", "--triton-model-name", "x"),
            "has 1000 classes, and there are 3 labels",
        ),
    ],
)
def test_contradictory_flags_are_refused(
    deployer: Deployer, tmp_path: Path, flags: tuple[str, ...], says: str
) -> None:
    save_file(weights(), tmp_path / "saved.safetensors")
    done = deployer(*flags, network=("--config", NORMED, "--checkpoint", tmp_path / "saved.safetensors"))
    assert done.exit_code == 2
    assert says in done.output
    assert not (tmp_path / "models").exists()


def wrapped(path: Path) -> None:
    tensors = {f"module.{name}": tensor for name, tensor in weights().items()}
    torch.save({"epoch": 90, "arch": "small", "state_dict": tensors}, path)


def without_counters(path: Path) -> None:
    save_file({name: v.clone() for name, v in weights().items() if "num_batches" not in name}, path)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("model_checkpoint", lambda path: torch.save(weights(), path)),
        ("wrapped.pth.tar", wrapped),
        ("plain.safetensors", without_counters),
    ],
)
def test_checkpoints_of_every_kind_are_the_network(
    tmp_path: Path, name: str, save: Callable[[Path], None]
) -> None:
    save(tmp_path / name)
    network = networks.network_of(NORMED, tmp_path / name, seed=2).module
    for key, tensor in weights().items():
        assert torch.equal(network.state_dict()[key], tensor)


@pytest.mark.slow
def test_nvidia_s_two_layouts_are_read(tmp_path: Path) -> None:
    """One numbers the stages in a module and squeezes by convolutions, the other by linear layers."""
    config, theirs = "se-resnext101-32x4d", tmp_path / "nvidia.safetensors"
    right = networks.build(config, 1000, seed=1).module.state_dict()
    later = {re.sub(r"^layer(\d)", lambda stage: f"layers.{int(stage[1]) - 1}", name): name for name in right}
    linear = {name: right[name][:, :, 0, 0] for name in right if re.search("squeeze.*weight", name)}
    for layout in ({name: right[old] for name, old in later.items()}, right | linear):
        save_file({name: tensor.contiguous() for name, tensor in layout.items()}, theirs)
        network = networks.network_of(config, theirs, seed=2).module
        for name, tensor in network.state_dict().items():
            assert torch.equal(tensor, right[name]), name


def test_the_number_of_classes_is_read_from_the_checkpoint(deployer: Deployer, tmp_path: Path) -> None:
    save_file(networks.build(SMALL, 5, seed=1).module.state_dict(), tmp_path / "five.safetensors")
    network = ("--config", SMALL, "--batch_size", 2, "--checkpoint", tmp_path / "five.safetensors")
    done = deployer("--onnx", "--labels", "a,b,c,d,e", network=network)
    assert done.exit_code == 0, done.output
    assert list(read_config(tmp_path / "models" / "model").output[0].dims) == [5]
    manifest = json.loads((tmp_path / "models" / "model" / "1" / "manifest.json").read_text())
    assert manifest["training"]["weights"] == "five.safetensors"
    assert len(manifest["training"]["weights_sha256"]) == 64


def cut_short(path: Path) -> None:
    torch.save(weights(), path)
    path.write_bytes(path.read_bytes()[:100_000])


def with_other(**tensors: torch.Tensor) -> Callable[[Path], None]:
    return lambda path: save_file({**weights(), **tensors}, path)


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code of a checkpoint ran",)


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("bad.pth", cut_short, "cannot be read as a file of weights|is not a file of weights"),
        ("bad.pth", lambda path: torch.save({"state_dict": Code()}, path), "holds more than tensors"),
        (
            "bad.safetensors",
            lambda path: save_file(networks.build(SMALL, 1000, 0).module.state_dict(), path),
            r"of another network, .*: \d+ of its tensors differ, such as no conv1.0.weight and no conv1.",
        ),
        (
            "bad.safetensors",
            with_other(**{"conv1.0.weight": torch.zeros(48, 3, 3, 3)}),
            r": 1 of its tensors differ.* conv1.0.weight of \[48, 3, 3, 3\] instead of \[24, 3, 3, 3\]",
        ),
        (
            "bad.safetensors",
            with_other(**{"conv1.0.weight": torch.full((24, 3, 3, 3), torch.nan)}),
            "answers that are not finite: check its weights",
        ),
        ("bad.safetensors", with_other(**{"fc.bias": torch.tensor(1.0)}), r"fc.bias of \[\] instead of"),
        ("bad.pth", lambda path: None, "does not exist"),
    ],
)
def test_a_bad_checkpoint_is_refused_and_the_model_stays(
    deployer: Deployer, tmp_path: Path, name: str, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(tmp_path / name)
    version = tmp_path / "models" / "model" / "1"
    version.mkdir(parents=True)
    (version / "manifest.json").write_text('{"deployer": "onnx", "file": "model.onnx"}')
    before = files(tmp_path / "models")
    done = deployer("--onnx", network=("--config", NORMED, "--checkpoint", tmp_path / name))
    assert done.exit_code == 1
    assert "nothing was written" in done.output
    assert "code of a checkpoint ran" not in done.output
    assert re.search(says, done.output), done.output
    assert files(tmp_path / "models") == before


def test_an_unreachable_server_is_an_error_before_the_export(deployer: Deployer, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    done = deployer("--onnx", "--triton-server-url", f"127.0.0.1:{port}")
    assert done.exit_code == 1
    assert f"no Triton answers at 127.0.0.1:{port}" in done.output
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_a_version_in_another_format_and_a_model_of_somebody_else_stay(
    deployer: Deployer, tmp_path: Path
) -> None:
    assert deployer("--ts-trace").exit_code == 0
    model = tmp_path / "models" / "model"
    before = files(model)
    other = deployer("--onnx", "--triton-model-version", 2)
    assert other.exit_code == 2
    assert "version 1 of" in other.output
    assert "all versions of a model have one format" in other.output
    assert files(model) == before

    replaced = deployer("--onnx", "--triton-max-batch-size", 4)
    assert replaced.exit_code == 0, replaced.output
    assert set(files(model)) == {"config.pbtxt", "1/model.onnx", "1/manifest.json"}
    assert read_config(model).max_batch_size == 4

    (model / "1" / "manifest.json").unlink()
    foreign = deployer("--onnx")
    assert foreign.exit_code == 2
    assert "holds a model that the deployer did not make" in foreign.output


def test_unknown_networks_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(GourmetError, match="use resnet50, resnext101-32x4d, se-resnext101-32x4d"):
        networks.build("resnet", 10, 0)
    with pytest.raises(GourmetError, match=r"needs the package timm|timm has no network 'resnet'"):
        networks.build("timm:resnet", 10, 0)
