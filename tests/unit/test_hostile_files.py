"""Somebody's file is read: nothing in it runs, nothing is written, and it is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from support.hostile_files import torchscript_that_writes

from gourmet import repository
from gourmet.cli import main
from gourmet.errors import GourmetError
from gourmet.runtime.manifest import sha256
from gourmet.training.files import load_tensors

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

VERBS = {
    "new": "new flowers --labels a,b --weights {file} --architecture torchvision:resnet18 --to {folder}",
    "deployer": "deployer --onnx --config torchvision:resnet18 --checkpoint {file} --save-dir {folder}",
    "deploy": "deploy food11 --format onnx --weights {file} --data {folder} --to {folder}",
    "evaluate": "evaluate food11 --weights {file} --data {folder}",
    "train": "train digits --init {file} --out {folder}/run --limit 20",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["best.pth", "model.pt", "checkpoint.pth.tar"])
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
