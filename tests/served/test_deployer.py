"""A running Triton loads the models of `gourmet deployer`; `gourmet deployer client` calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from support.triton import RunningTriton

from gourmet.cli import main
from gourmet.pictures.drawn import made_up
from gourmet.tasks.classification import nvidia_networks as networks

pytestmark = pytest.mark.slow

SMALL = "torchvision:squeezenet1_1"
Ask = Callable[..., Result]


def gourmet(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def deploy(triton: RunningTriton, name: str, *flags: object, url: str = "", to: Path | None = None) -> Result:
    target = ("--triton-server-url", url or triton.http_url, "--save-dir", to or triton.repository)
    network = ("--", "--config", SMALL, "--batch_size", 2)
    return gourmet("deployer", *flags, "--triton-model-name", name, *target, *network)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("theirs") / "checkpoint.pth"
    tensors = networks.build(SMALL, 3, seed=1).module.state_dict()
    tensors["classifier.1.weight"] *= 100  # scores of a trained network are not as near to each other
    torch.save(tensors, path)
    return path


@pytest.fixture(scope="module")
def served(lab_triton: RunningTriton, checkpoint: Path) -> RunningTriton:
    """A Triton with a network of three classes, as ONNX and in half precision as TorchScript."""
    labels = ("--labels", "ant,bee,cat")
    for name, *flags in (("three", "--onnx"), ("three_half", "--ts-trace", "--fp16")):
        done = deploy(lab_triton, name, *flags, *labels, "--checkpoint", checkpoint)
        assert done.exit_code == 0, done.output
    return lab_triton


@pytest.mark.parametrize(
    ("flag", "protocol"), [("--onnx", "grpc"), ("--ts-script", "http"), ("--ts-trace", "grpc")]
)
def test_the_server_that_is_named_loads_it_and_answers_as_the_network(
    lab_triton: RunningTriton, flag: str, protocol: str
) -> None:
    url = lab_triton.grpc_url if protocol == "grpc" else lab_triton.http_url
    done = deploy(lab_triton, f"asked{flag}", flag, url=url)
    assert done.exit_code == 0, done.output
    assert f"asked{flag} answers over {protocol}: within " in done.output


def test_a_server_of_another_repository_is_told_and_nothing_stays(
    lab_triton: RunningTriton, tmp_path: Path
) -> None:
    done = deploy(lab_triton, "nowhere", "--onnx", to=tmp_path / "models")
    assert done.exit_code == 1
    assert "nothing was written" in done.output
    assert not (tmp_path / "models").exists()


def test_the_old_model_serves_again_when_the_new_one_is_refused(
    lab_triton: RunningTriton, tmp_path: Path
) -> None:
    """The model of another folder answers otherwise: what was written there before is there again."""
    assert deploy(lab_triton, "kept", "--onnx").exit_code == 0
    elsewhere = tmp_path / "models"
    first = gourmet(
        *("deployer", "--onnx", "--triton-model-name", "kept", "--save-dir", elsewhere),
        *("--config", SMALL, "--batch_size", 2),
    )
    assert first.exit_code == 0, first.output
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    done = deploy(lab_triton, "kept", "--onnx", "--seed", 5, "--triton-engine-count", 2, to=elsewhere)
    assert done.exit_code == 1
    assert "answers otherwise than the network" in done.output
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


@pytest.fixture
def ask(served: RunningTriton) -> Ask:
    def run(*flags: object, model: str = "three", url: str = served.grpc_url) -> Result:
        return gourmet("deployer", "client", "--triton-server-url", url, "--triton-model-name", model, *flags)

    return run


@pytest.mark.parametrize(
    ("protocol", "model", "flags"), [("http", "three", ()), ("grpc", "three_half", ("--fp16",))]
)
def test_the_client_compares_with_the_checkpoint(
    ask: Ask, served: RunningTriton, checkpoint: Path, protocol: str, model: str, flags: tuple[str, ...]
) -> None:
    url = served.grpc_url if protocol == "grpc" else served.http_url
    compared = ("--config", SMALL, "--reference", checkpoint, "--min-agreement", 1)
    more = ("--batch_size", 4, "--rows", 10, *compared)
    done = ask(*flags, *more, "--json", "-", model=model, url=url)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["protocol"] == protocol
    assert report["rows"] == 10
    assert report["agreement"] == 1.0
    assert report["largest_difference"] <= report["allowed_difference"]


def test_one_changed_weight_of_the_checkpoint_is_found(ask: Ask, checkpoint: Path, tmp_path: Path) -> None:
    tensors = torch.load(checkpoint, weights_only=True)
    tensors["classifier.1.bias"][1] += 5.0
    torch.save(tensors, tmp_path / "changed.pth")
    compared = ("--rows", 6, "--config", SMALL, "--reference", tmp_path / "changed.pth")
    done = ask(*compared)
    assert done.exit_code == 1
    assert "answers differ from the network's by" in done.output
    assert ask(*compared, "--max-difference", 100).exit_code == 0


def test_labelled_pictures_give_the_accuracy(ask: Ask, tmp_path: Path) -> None:
    for number, label in enumerate(("ant", "bee", "cat")):
        for layout in ("plain", "imagenet/val-jpeg"):
            folder = tmp_path / layout / label
            folder.mkdir(parents=True)
            for index in range(2):
                (folder / f"{index}.jpg").write_bytes(made_up(10 * number + index))
    reports = []
    for folder in ("plain", "imagenet"):
        done = ask("--inference_data", tmp_path / folder, "--batch_size", 4, "--json", tmp_path / "out.json")
        assert done.exit_code == 0, done.output
        reports.append(json.loads((tmp_path / "out.json").read_text()))
    assert [report["rows"] for report in reports] == [6, 6]
    assert 0.0 <= reports[0]["top1"] == reports[1]["top1"] <= 1.0
    failed = ask("--inference_data", tmp_path / "plain", "--min-top1", 1)
    assert (failed.exit_code == 0) == (reports[0]["top1"] == 1)


def test_rows_of_a_file_are_asked_as_they_are(ask: Ask, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 3, 224, 224)).astype(np.float32)
    rows.tofile(tmp_path / "input__0.bin")
    done = ask("--inference_data", tmp_path / "input__0.bin", "--batch_size", 2, "-v")
    assert done.exit_code == 0, done.output
    assert "3 rows of input__0.bin" in done.output
    assert "rows 2 to 2: classes" in done.output
    (tmp_path / "short.bin").write_bytes(b"1234")
    short = ask("--inference_data", tmp_path / "short.bin")
    assert short.exit_code == 2
    assert "is not whole rows of float32 [3, 224, 224]" in short.output


@pytest.mark.parametrize(
    ("flags", "model", "says"),
    [
        (("--fp16",), "three", "FP32"),
        ((), "three_half", "FP16"),
        (("--batch_size", 9), "three", "batch-size must be <= 8"),
        ((), "absent", "absent"),
        (("--min-agreement", "1"), "three", "need a --reference"),
        (("--min-top1", "0.5"), "three", "carry no labels"),
    ],
)
def test_impossible_requests_are_refused_with_a_reason(
    ask: Ask, flags: tuple[object, ...], model: str, says: str
) -> None:
    done = ask(*flags, model=model)
    assert done.exit_code
    assert says in done.output
