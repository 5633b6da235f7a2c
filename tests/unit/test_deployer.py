"""`gourmet deployer`: what each flag does, and that a refusal leaves nothing behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file
from support.cli import gourmet
from support.stopping import everything

from gourmet.errors import GourmetError
from gourmet.export.torchvision_network import TorchvisionNetwork, build, fitted
from gourmet.pictures.classifier import PictureClassifier
from gourmet.repository.models import read_config
from gourmet.stack.preflight import free_ports
from gourmet.triton_client.model_config import as_json

# Written in a few seconds; and one with batch norms, for what is said of checkpoints.
SMALL = "torchvision:squeezenet1_1"
NORMED = "torchvision:shufflenet_v2_x0_5"
Deployer = Callable[..., Result]


@pytest.fixture
def deployer(tmp_path: Path) -> Deployer:
    def run(*flags: object, network: tuple[object, ...] = ("--config", SMALL, "--batch_size", 2)) -> Result:
        return gourmet("deployer", *flags, "--save-dir", tmp_path / "models", "--", *network)

    return run


def files(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in everything(folder).items() if content is not None}


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return dict(build(NORMED, 1000).state_dict())


@pytest.mark.parametrize(
    ("flag", "half", "file", "platform"),
    [
        ("--ts-script", False, "model.pt", "pytorch_libtorch"),
        ("--onnx", True, "model.onnx", "onnxruntime_onnx"),
    ],
)
def test_a_network_becomes_a_model_that_answers_as_it_does(
    deployer: Deployer, tmp_path: Path, flag: str, half: bool, file: str, platform: str
) -> None:
    network = ("--config", SMALL, "--batch_size", 3, *(["--fp16"] if half else []))
    done = deployer(flag, "--triton-model-name", "small", "--triton-max-batch-size", 0, network=network)
    assert done.exit_code == 0, done.output
    model = tmp_path / "models" / "small"
    assert done.output.splitlines()[-1].endswith(f"{flag[2:]} of {SMALL}: {model / '1'}")
    assert set(files(model)) == {"config.pbtxt", f"1/{file}", "1/manifest.json"}
    config = read_config(model)
    assert (config.backend, config.platform) == (platform.partition("_")[0], platform)
    (image,), (answer,) = config.input, config.output
    assert (image.name, list(image.dims)) == ("input__0", [-1, 3, 224, 224])
    assert (answer.name, list(answer.dims)) == ("output__0", [-1, 1000])
    kinds = {tensor["data_type"] for part in ("input", "output") for tensor in as_json(config)[part]}
    assert kinds == {"TYPE_FP16" if half else "TYPE_FP32"}
    assert image.format == image.FORMAT_NONE, "the rows are a dimension"
    manifest = json.loads((model / "1" / "manifest.json").read_text())
    assert manifest["training"] == {"weights": "none: initialised at random from seed 0"}
    assert "initialised at random from seed 0" in done.output
    measured = {check["what"]: check for check in manifest["gate"]}
    assert set(measured) == {*(f"largest difference, batch {n}" for n in (1, 2, 3)), "top-1 agreement"}
    assert measured["top-1 agreement"]["measured"] == "6 of 6"
    assert manifest["input"] == f"{'float16' if half else 'float32'} [N, 3, 224, 224]"


def test_each_flag_of_serving_is_seen_in_the_config(deployer: Deployer, tmp_path: Path) -> None:
    flags = (
        "--ts-trace --triton-no-cuda --triton-max-batch-size 64 --triton-dyn-batching-delay 1.5 "
        "--triton-engine-count 3 --triton-model-name other --triton-model-version 7 --labels"
    )
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"kind {number}\n" for number in range(1000)))
    done = deployer(*flags.split(), labels)
    assert done.exit_code == 0, done.output
    model = tmp_path / "models" / "other"
    config = read_config(model)
    assert (model / "7" / "model.pt").exists()
    assert (config.name, config.max_batch_size) == ("other", 64)
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    assert list(config.dynamic_batching.preferred_batch_size) == [32, 64]
    (group,) = config.instance_group
    assert (group.count, group.kind) == (3, group.KIND_CPU)
    assert config.output[0].label_filename == "labels.txt"
    assert (model / "labels.txt").read_text() == labels.read_text()
    assert json.loads(config.parameters["labels"].string_value)[999] == "kind 999"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "give one of --ts-script, --ts-trace, --onnx: 0 are given"),
        (("--onnx", "--ts-trace"), "2 are given"),
        (("--trt", "--max_workspace_size=2147483648"), "export --onnx, and build the engine with"),
        (("--onnx", "--triton-max-batch-size", 0, "--triton-dyn-batching-delay", 2), "size of at least 1"),
        (("--onnx", "--triton-model-name", "../out"), "not a valid name of a folder"),
        (("--onnx", "--labels", "a,b,c", "--triton-model-name", "x"), "classes, and there are 3 labels"),
    ],
)
def test_contradictory_flags_are_refused(
    deployer: Deployer, tmp_path: Path, flags: tuple[str, ...], says: str
) -> None:
    save_file(weights(), tmp_path / "saved.safetensors")
    done = deployer(*flags, network=("--config", NORMED, "--checkpoint", tmp_path / "saved.safetensors"))
    assert done.exit_code == 2
    assert says in done.output
    assert not files(tmp_path / "models")


def of_checkpoint(config: str, checkpoint: Path) -> torch.nn.Module:
    system = PictureClassifier("m", "", "", "m", tuple(map(str, range(1000))), checkpoint)
    return TorchvisionNetwork(system, config)(checkpoint)[0]


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
def test_every_checkpoint_is_the_network(tmp_path: Path, name: str, save: Callable[[Path], None]) -> None:
    save(tmp_path / name)
    network = of_checkpoint(NORMED, tmp_path / name)
    for key, tensor in weights().items():
        assert torch.equal(network.state_dict()[key], tensor)


def test_nvidia_s_two_layouts_are_read() -> None:
    config = "se-resnext101-32x4d"
    with torch.device("meta"):
        network = build(config, 1000)
    right = network.state_dict()
    theirs = {
        name.replace(".bn3.0.", ".bn3.").replace(".bn3.1.", ".squeeze."): tensor
        for name, tensor in right.items()
        if not name.endswith("num_batches_tracked")
    }
    later = {re.sub(r"^layer(\d)", lambda n: f"layers.{int(n[1]) - 1}", k): v for k, v in theirs.items()}
    linear = {k: v[:, :, 0, 0] if re.search(r"\.squeeze\..*weight", k) else v for k, v in theirs.items()}
    for layout in (later, linear):
        tensors = fitted(layout, network, config)
        assert {k: v.shape for k, v in tensors.items()} == {k: v.shape for k, v in right.items()}


def test_a_checkpoint_with_labels_has_their_names_in_the_config(deployer: Deployer, tmp_path: Path) -> None:
    save_file(build(SMALL, 5).state_dict(), tmp_path / "five.safetensors")
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


def with_other(name: str, tensor: torch.Tensor) -> Callable[[Path], None]:
    return lambda path: save_file({**weights(), name: tensor}, path)


def of_another(path: Path) -> None:
    save_file(build(SMALL, 1000).state_dict(), path)


NANS = torch.full((24, 3, 3, 3), torch.nan)


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
            of_another,
            r"of another network, .*: \d+ of its tensors differ, such as no conv1.0",
        ),
        (
            "bad.safetensors",
            with_other("conv1.0.weight", torch.zeros(48, 3, 3, 3)),
            r"\[48, 3, 3, 3\] instead of",
        ),
        (
            "bad.safetensors",
            with_other("conv1.0.weight", NANS),
            "answers that are not finite: check its weights",
        ),
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
    assert not files(tmp_path / "models")


@pytest.mark.slow
def test_a_version_in_another_format_and_a_foreign_model_stay(deployer: Deployer, tmp_path: Path) -> None:
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


def test_unknown_networks_are_refused_with_the_known_ones() -> None:
    with pytest.raises(GourmetError, match="resnet50, resnext101-32x4d, se-resnext101-32x4d"):
        build("resnet", 10)
    with pytest.raises(GourmetError, match=r"needs the package timm|timm has no network 'resnet'"):
        build("timm:resnet", 10)
