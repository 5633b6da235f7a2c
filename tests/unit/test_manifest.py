"""A file against its manifest: the same, another, none, and manifests that say nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from gourmet.repository import DEFAULT, model_names, read_config, versions
from gourmet.served import manifest

REQUIRED, ASKED = (
    {"name": "soup", "parameters": {"manifest": {"string_value": value}}} for value in ("required", "yes")
)


def version(folder: Path, content: bytes = b"weights", **says: Any) -> Path:
    """A version folder with a file and its manifest, which says something else where told to."""
    file = folder / "model.onnx"
    file.write_bytes(content)
    right = {"file": "model.onnx", "sha256": manifest.sha256(file)}
    (folder / manifest.MANIFEST).write_text(json.dumps({**right, **says}))
    return file


def test_another_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    file = version(tmp_path)
    assert manifest.check_files(file, REQUIRED)
    deployed = manifest.sha256(file)
    file.write_bytes(b"weightz")
    with pytest.raises(
        manifest.ManifestError, match=f"has sha256 {manifest.sha256(file)}, its manifest says {deployed}"
    ):
        manifest.check_files(file, {})


def test_without_a_manifest_the_config_decides(tmp_path: Path) -> None:
    file = version(tmp_path)
    (tmp_path / manifest.MANIFEST).unlink()
    assert not manifest.check_files(file, {})
    for config in (REQUIRED, ASKED):
        with pytest.raises(
            manifest.ManifestError, match=r"manifest\.json is missing, and the model.s config requires it"
        ):
            manifest.check_files(file, config)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file": "model.onnx"}', "\xff"])
def test_an_empty_manifest_is_refused(tmp_path: Path, text: str) -> None:
    file = version(tmp_path)
    (tmp_path / manifest.MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(manifest.ManifestError, match="cannot be read"):
        manifest.check_files(file, {})


def test_a_manifest_of_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(manifest.ManifestError, match=r"lists 'model\.pt', not 'model\.onnx'"):
        manifest.check_files(version(tmp_path, file="model.pt"), {})


def test_another_listed_file_that_is_missing_is_noticed(tmp_path: Path) -> None:
    file = version(tmp_path, also={"model_int8.onnx": {"sha256": "0"}})
    with pytest.raises(manifest.ManifestError, match=r"lacks model_int8\.onnx, which its manifest lists"):
        manifest.check_files(file, {})
    (tmp_path / "model_int8.onnx").touch()
    assert manifest.check_files(file, {})


def test_a_file_in_a_folder_of_its_version_is_named_with_it(tmp_path: Path) -> None:
    inner = tmp_path / "model.onnx"
    inner.mkdir()
    file = inner / "model.onnx"
    file.write_bytes(b"large")
    says = {"file": "model.onnx/model.onnx", "sha256": manifest.sha256(file)}
    (tmp_path / manifest.MANIFEST).write_text(json.dumps(says))
    assert manifest.check_files(file, REQUIRED, tmp_path)


# food_first opens the file of food_classifier_onnx, whose manifest it has not.
@pytest.mark.parametrize("name", [name for name in model_names(DEFAULT) if name != "food_first"])
def test_the_shipped_models_ask_for_their_manifest_and_are_the_deployed_files(name: str) -> None:
    model = DEFAULT / name
    for number in versions(model):
        folder = model / str(number)
        file = folder / json.loads((folder / manifest.MANIFEST).read_text())["file"]
        assert manifest.check_files(file, {})
    assert read_config(model).parameters[manifest.PARAMETER].string_value == manifest.REQUIRED


@pytest.mark.parametrize(
    "file",
    sorted(file for file in DEFAULT.glob("*/1/*.onnx") if not file.is_symlink()),
    ids=lambda file: file.parts[-3],
)
def test_the_shipped_onnx_files_have_their_labels_licence_and_version(file: Path) -> None:
    about = json.loads((file.parent / manifest.MANIFEST).read_text())["network"]
    metadata = {prop.key: prop.value for prop in onnx.load(file).metadata_props}
    assert metadata["system"] == about["system"]
    assert json.loads(metadata.get("labels", "[]")) == about.get("labels", [])
    assert {"license", "version"} <= metadata.keys()


def verified(repository: Path) -> subprocess.CompletedProcess[str]:
    """As a pod's init container asks it: by a Python that has gourmet, and no library of any model."""
    command = [sys.executable, "-P", "-m", "gourmet.served.manifest", str(repository)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_version_that_is_not_as_deployed_is_named_and_set_aside(tmp_path: Path) -> None:
    for name in ("digits", "onnx-mnist-cpu"):
        shutil.copytree(DEFAULT / name, tmp_path / name)
    whole = verified(tmp_path)
    assert (whole.returncode, whole.stdout) == (
        0,
        f"{tmp_path}: 2 models, 2 versions match their manifests\n",
    )
    file = tmp_path / "digits" / "1" / "model.onnx"
    file.write_bytes(file.read_bytes()[:-1])
    cut = verified(tmp_path)
    assert cut.returncode == 0
    assert f"not served: {file} has sha256" in cut.stdout
    assert f"{tmp_path}: 2 models, 1 versions match their manifests" in cut.stdout
    assert not file.exists()
    assert (tmp_path / "digits" / ".unverified-1" / "model.onnx").exists()


def test_an_empty_repository_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    empty = verified(tmp_path)
    assert empty.returncode == 1
    assert f"{tmp_path} has no models" in empty.stderr
