"""The gate: real exports of a small-headed food network pass, broken ones are refused without a trace."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from support.stopping import everything
from torch import nn

from gourmet.errors import GourmetError
from gourmet.evaluation.calibration import Calibration, NotEvaluated, read_evaluation, write_measured
from gourmet.evaluation.system_parts import BadData
from gourmet.export.onnx_metadata import with_metadata
from gourmet.export.picture_export import Exported, Source, open_onnx
from gourmet.pictures.certainty import relevance, softmax
from gourmet.repository.deploy import deploy, rollback
from gourmet.repository.gate import Check, Deployment, ModelFile, Target
from gourmet.repository.models import RepositoryError, read_config
from gourmet.repository.versions import version_numbers
from gourmet.served.manifest import sha256
from gourmet.served.signals import sigterm_unwinds
from gourmet.systems.food11 import contract, int8
from gourmet.systems.food11.export import EXPORT, from_photos
from gourmet.systems.food11.network import Food11Network, load
from gourmet.training.files import save_tensors
from gourmet.triton_client.model_config import parse

MODELS = Path(__file__).parents[2] / "triton" / "models"


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
    """Soft blobs of colour, as different from each other as photos are."""
    coarse = np.random.default_rng(0).integers(0, 256, (16, 4, 4, 3)).astype(np.uint8)
    return np.ascontiguousarray(coarse.repeat(56, axis=1).repeat(56, axis=2))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those that are served, and an evaluation of them."""
    network, _ = load(MODELS / "food_classifier" / "1" / "model.onnx")
    assert isinstance(network, Food11Network)
    path = tmp_path_factory.mktemp("run") / "last.safetensors"
    save_tensors(path, network.state_dict(), {**network.about, "epoch": 1})
    write_measured(path, calibration=vars(Calibration(1.25, 0.4)), accuracy={"test": {"balanced": 0.5}})
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The food models' configs, and a version 1 that stands for what is served now."""
    for name in ("food_classifier", "food_classifier_onnx", "food_classifier_int8"):
        (tmp_path / name / "1").mkdir(parents=True)
        shutil.copy(MODELS / name / "config.pbtxt", tmp_path / name)
        (tmp_path / name / "1" / "model.py").write_text("code")
        (tmp_path / name / "1" / "model.onnx").write_text("old weights")
    return tmp_path


@pytest.fixture(scope="module")
def data(pictures: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures as somebody's data, a few for each part."""
    folder = tmp_path_factory.mktemp("data")
    for part, chosen in (("train", pictures[:8]), ("validation", pictures)):
        for number, pixels in enumerate(chosen):
            path = folder / part / f"{number % 11:02d}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture(scope="module")
def opened(weights: Path, data: Path) -> tuple[Deployment, Source]:
    """A deployment whose ONNX file is exported once, and the source of its models."""
    sources: list[Source] = []

    def keep(source: Source) -> Target:
        sources.append(source)
        target = EXPORT.models["onnx"](source)  # type: ignore[attr-defined]
        (file,) = target.files
        export = functools.cache(lambda folder: (file.write(folder / "model.onnx"), folder / "model.onnx"))

        def write(path: Path) -> dict[str, Any]:
            facts, exported = export(weights.parent)
            shutil.copy(exported, path)
            return dict(facts)

        return dataclasses.replace(target, files=[dataclasses.replace(file, write=write)], compare=None)

    export = dataclasses.replace(EXPORT, models={**EXPORT.models, "onnx": keep})  # type: ignore[type-var,attr-defined]
    return export.open(weights, data, lambda share: None), sources[0]


@pytest.fixture(scope="module")
def deployment(opened: tuple[Deployment, Source]) -> Deployment:
    return opened[0]


@pytest.fixture(scope="module")
def source(opened: tuple[Deployment, Source]) -> Source:
    return opened[1]


@pytest.fixture(scope="module")
def few(source: Source, pictures: np.ndarray) -> Source:
    """The same network with a few pictures to calibrate eight bits with; what is made of it is kept."""
    return dataclasses.replace(source, to_calibrate=pictures[:4], candidate=None)


def texts_of(model: Path) -> dict[str, str]:
    return {key: entry.string_value for key, entry in read_config(model).parameters.items()}


@pytest.mark.smoke
@pytest.mark.parametrize("form", ["onnx", pytest.param("photos", marks=pytest.mark.slow)])
def test_an_exact_export_becomes_the_next_version_with_its_manifest(
    form: str, deployment: Deployment, few: Source, repository: Path
) -> None:
    if form == "photos":
        deployment = dataclasses.replace(deployment, targets={form: from_photos(few)})
    target = deployment.targets[form]
    folder, _ = deploy(deployment, form, repository)
    model = repository / target.model
    assert folder == model / "2"
    assert (folder / "model.py").read_text() == "code"
    assert (model / "1" / "model.onnx").read_text() == "old weights"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["sha256"] == sha256(folder / target.files[0].name)
    assert manifest["bytes"] == (folder / target.files[0].name).stat().st_size
    assert manifest["accuracy"] == {"test": {"balanced": 0.5}}
    assert manifest["preprocessing"]["mean"] == list(contract.SYSTEM.mean)
    assert all(check["passed"] for check in manifest["gate"])
    calibrated = {"temperature": "1.2500", "threshold": "0.4000", "system": "food11"}
    assert calibrated.items() <= texts_of(model).items()
    if form == "photos":
        # Weights that learned nothing do not survive eight bits: the version is whole without that form.
        assert not manifest.get("also")
        assert not (folder / "model_int8.onnx").exists()
        assert "model_int8.onnx: left out" in {check["what"] for check in manifest["gate"]}
    if form == "onnx":
        assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "model.onnx", "model.py"]
        graph = onnx.load(folder / "model.onnx").graph
        assert graph.input[0].name == "input"
        assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
        assert [output.name for output in graph.output] == ["output", "dishes"]


@pytest.mark.slow
def test_int8_takes_pixels_and_answers_nearly_as_the_network_does(
    few: Source, pictures: np.ndarray, tmp_path: Path
) -> None:
    facts = int8.write_int8(few, tmp_path / "model.onnx")
    answers = open_onnx(tmp_path / "model.onnx", "image", "probabilities")
    logits = few.eager(pictures)
    expected = relevance(logits)[:, np.newaxis] * softmax(logits, 1.25)
    for rows in (1, 3, 16):
        result = answers(pictures[:rows])
        assert result.sum(axis=1) == pytest.approx(expected[:rows].sum(axis=1), abs=0.1)
        assert np.abs(result - expected[:rows]).mean() < 0.1
    assert facts["opset"] == 17
    quantized = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Softmax"} <= quantized
    assert (tmp_path / "model.onnx").stat().st_size < 6_000_000


class Tampered(nn.Module):
    def __init__(self, network: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self.change = network, change
        self.eval()  # torch puts a network that it exported back into the mode it found it in

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(self.change(images))  # type: ignore[no-any-return]


Write = Callable[[Target, Source, Path], dict[str, Any]]


def swapped_channels(target: Target, source: Source, path: Path) -> dict[str, Any]:
    tampered = dataclasses.replace(source, network=Tampered(source.network, lambda x: x.flip(1)))
    return Exported("food_classifier_onnx")(tampered).files[0].write(path)


def fixed_batch(target: Target, source: Source, path: Path) -> dict[str, Any]:
    facts = target.files[0].write(path)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    return facts


def truncated(target: Target, source: Source, path: Path) -> dict[str, Any]:
    facts = target.files[0].write(path)
    path.write_bytes(path.read_bytes()[:100_000])
    return facts


def raising(target: Target, source: Source, path: Path) -> dict[str, Any]:
    raise ZeroDivisionError


def written_by(deployment: Deployment, write: Write, source: Source) -> Deployment:
    """The same deployment, whose ONNX model is written by `write`."""
    target = deployment.targets["onnx"]
    file = dataclasses.replace(target.files[0], write=partial(write, target, source))
    broken = dataclasses.replace(target, files=[file])
    return dataclasses.replace(deployment, targets={"onnx": broken})


@pytest.mark.promise("README: compares the export with the network")
@pytest.mark.smoke
@pytest.mark.parametrize("broken", [swapped_channels, fixed_batch, truncated, raising])
def test_a_broken_export_is_refused_and_the_served_version_stays(
    broken: Write, deployment: Deployment, source: Source, repository: Path
) -> None:
    before = everything(repository)
    with pytest.raises((GourmetError, ZeroDivisionError)) as refused:
        deploy(written_by(deployment, broken, source), "onnx", repository)
    says = r"(?s)^$" if broken is raising else "(?s)food_classifier_onnx is not deployed.*FAIL"
    assert re.match(says, str(refused.value))
    assert everything(repository) == before


def test_a_new_model_appears_with_its_config_or_not_at_all(
    deployment: Deployment, source: Source, tmp_path: Path
) -> None:
    with pytest.raises(GourmetError, match="is not deployed"):
        deploy(written_by(deployment, truncated, source), "onnx", tmp_path)
    assert not any(tmp_path.iterdir())
    folder, _ = deploy(deployment, "onnx", tmp_path)
    assert folder == tmp_path / "food_classifier_onnx" / "1"
    config, texts = read_config(folder.parent), texts_of(folder.parent)
    assert json.loads(texts["labels"]) == list(contract.SYSTEM.labels)
    assert (config.max_batch_size, list(config.input[0].dims)) == (16, [3, 224, 224])
    assert texts["temperature"] == "1.2500"


def test_weights_without_an_evaluation_of_their_own_are_not_deployed(
    weights: Path, data: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "last.safetensors"
    shutil.copy(weights, alone)
    with pytest.raises(NotEvaluated, match="run `gourmet evaluate`"):
        EXPORT.open(alone, data, lambda share: None)
    write_measured(alone, calibration=vars(Calibration(1.0, 0.0)), accuracy={})
    alone.write_bytes(b"others")
    with pytest.raises(NotEvaluated, match="about other weights"):
        read_evaluation(alone)


def test_fewer_pictures_than_a_full_batch_are_enough_but_none_is_an_error(
    deployment: Deployment, source: Source, repository: Path
) -> None:
    def verified_with(count: int) -> Sequence[Check]:
        few = dataclasses.replace(source, held_out=source.held_out[:count], candidate=None)
        write = deployment.targets["onnx"].files[0].write
        target = Exported("food_classifier_onnx")(few)
        target = dataclasses.replace(target, files=[dataclasses.replace(target.files[0], write=write)])
        return deploy(dataclasses.replace(deployment, targets={"onnx": target}), "onnx", repository)[1]

    assert [check.what.rpartition(" ")[2] for check in verified_with(5)[:-1]] == ["1", "2", "5"]
    with pytest.raises(BadData, match="no pictures are held out"):
        verified_with(0)


def by_hand(model: Path, text: str) -> bytes:
    """Put `text` before the config of `model`, as its owner may."""
    config = model / "config.pbtxt"
    config.write_text(text + config.read_text())
    return config.read_bytes()


def test_a_redeploy_keeps_manual_changes_of_the_config(deployment: Deployment, repository: Path) -> None:
    model = repository / "food_classifier_onnx"
    mine = '# Mine: "parameters {"\nversion_policy { all { } }  # a field that is never written here\n'
    before = by_hand(model, mine).decode().partition("# Generated with each version")
    deploy(deployment, "onnx", repository)
    after = (model / "config.pbtxt").read_text().partition("# Generated with each version")
    assert after[0] == before[0]
    assert after[2] != before[2]
    assert {"temperature": "1.2500", "system": "food11"}.items() <= texts_of(model).items()


def with_temperature(model: Path) -> None:
    by_hand(model, 'parameters { key: "temperature" value: { string_value: "3" } }\n')


def changed_below_the_line(model: Path) -> None:
    config = model / "config.pbtxt"
    config.write_text(re.sub(r"0\.\d{4}", "0.9999", config.read_text(), count=1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_temperature, "sets parameter 'temperature' by hand"),
        (changed_below_the_line, "was changed by hand below its line"),
    ],
)
def test_a_deploy_that_would_replace_a_manual_config_is_refused(
    change: Callable[[Path], None], says: str, deployment: Deployment, repository: Path
) -> None:
    change(repository / "food_classifier_onnx")
    (repository / "food_classifier_onnx" / "2").mkdir()
    before = everything(repository)
    with pytest.raises(RepositoryError, match=says):
        deploy(deployment, "onnx", repository)
    if change is changed_below_the_line:
        with pytest.raises(RepositoryError, match=says):
            rollback([repository / "food_classifier_onnx"])
    assert everything(repository) == before


def test_an_unreadable_config_is_refused_before_the_work(deployment: Deployment, repository: Path) -> None:
    (repository / "food_classifier_onnx" / "config.pbtxt").write_text('name: "x" broken {')
    before = everything(repository)
    with pytest.raises(RepositoryError, match="is not a config that Triton can read"):
        deploy(deployment, "onnx", repository)
    assert everything(repository) == before


@pytest.mark.promise("operating: a command receives Ctrl-C or SIGTERM")
def test_sigterm_during_a_build_leaves_the_repository_unchanged(repository: Path) -> None:
    def build(path: Path) -> dict[str, Any]:
        path.write_text("new weights")
        signal.raise_signal(signal.SIGTERM)
        return {}

    target = Target("food_classifier_onnx", [ModelFile("model.onnx", build)])
    before = everything(repository)
    with pytest.raises(SystemExit), sigterm_unwinds():
        deploy(Deployment({"onnx": target}), "onnx", repository)
    assert everything(repository) == before


def test_a_rollback_brings_the_version_before_and_its_calibration_back(repository: Path) -> None:
    model = repository / "food_classifier_onnx"
    shutil.copytree(MODELS / model.name / "configs", model / "configs")
    (model / "configs" / "linked.pbtxt").symlink_to("gpu.pbtxt")
    for number, temperature in ((1, 1.1), (2, 2.2)):
        (model / str(number)).mkdir(exist_ok=True)
        weights = model / str(number) / "model.onnx"
        weights.write_text(f"weights {number}")
        manifest = {"file": weights.name, "sha256": sha256(weights)}
        manifest["calibration"] = {"temperature": temperature, "threshold": 0.3}
        (model / str(number) / "manifest.json").write_text(json.dumps(manifest))
    assert rollback([model]) == {model: (2, 1)}
    assert version_numbers(model) == (1,)
    assert (texts_of(model)["temperature"], texts_of(model)["threshold"]) == ("1.1000", "0.3000")
    on_gpu = parse((model / "configs" / "gpu.pbtxt").read_text())
    assert on_gpu.parameters == read_config(model).parameters
    assert on_gpu.instance_group != read_config(model).instance_group
    assert (model / "configs" / "linked.pbtxt").is_symlink()
    with pytest.raises(RepositoryError, match="has no version before 1"):
        rollback([model])
    assert version_numbers(model) == (1,)


def test_a_file_that_is_exported_again_has_the_new_metadata_once() -> None:
    shipped = (MODELS / "digits" / "1" / "model.onnx").read_bytes()
    again = with_metadata(shipped, "numbers", "MIT", labels=["one"])
    onnx.checker.check_model(again)  # refuses a key that repeats
    model = onnx.load_from_string(again)
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    assert (metadata["system"], metadata["license"], metadata["labels"]) == ("numbers", "MIT", '["one"]')
    assert model.graph == onnx.load_from_string(shipped).graph
