"""A file against its manifest: the same, another, none, and manifests that say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from gourmet.repository.models import DEFAULT_REPOSITORY, model_names, read_config
from gourmet.repository.versions import version_numbers
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


def test_all_files_of_a_version_are_checked_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    more = folder / "model_int8.onnx"
    more.write_bytes(b"small")
    version(folder, also={more.name: {"sha256": manifest.sha256(more)}})
    assert manifest.check_files(None, {}, folder)
    for content in (b"smalL", b"", b"small\0", b"s"):
        more.write_bytes(content)
        with pytest.raises(manifest.ManifestError, match="this is not the deployed file"):
            manifest.check_files(None, {}, folder)
    (tmp_path / "outside").write_bytes(b"small")
    version(folder, also={"../outside": {"sha256": manifest.sha256(tmp_path / "outside")}})
    with pytest.raises(manifest.ManifestError, match="is not a file of the version"):
        manifest.check_files(None, {}, folder)


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


def test_a_version_of_a_later_release_is_refused_with_that_release(tmp_path: Path) -> None:
    file = version(tmp_path, format=manifest.FORMAT, release="1.0.0")
    assert manifest.check_files(file, REQUIRED)
    file = version(tmp_path, format=manifest.FORMAT + 1, release="9.1.0")
    with pytest.raises(manifest.ManifestError, match=r"written by release 9\.1\.0.*install that release"):
        manifest.check_files(file, REQUIRED)


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
@pytest.mark.parametrize("name", [name for name in model_names(DEFAULT_REPOSITORY) if name != "food_first"])
def test_the_shipped_models_ask_for_their_manifest_and_are_the_deployed_files(name: str) -> None:
    model = DEFAULT_REPOSITORY / name
    for number in version_numbers(model):
        folder = model / str(number)
        file = folder / json.loads((folder / manifest.MANIFEST).read_text())["file"]
        assert manifest.check_files(file, {})
    assert read_config(model).parameters[manifest.PARAMETER].string_value == manifest.REQUIRED


@pytest.mark.parametrize(
    "file",
    sorted(file for file in DEFAULT_REPOSITORY.glob("*/1/*.onnx") if not file.is_symlink()),
    ids=lambda file: file.parts[-3],
)
def test_the_shipped_onnx_files_have_their_labels_licence_and_version(file: Path) -> None:
    about = json.loads((file.parent / manifest.MANIFEST).read_text())["network"]
    metadata = {prop.key: prop.value for prop in onnx.load(file).metadata_props}
    assert metadata["system"] == about["system"]
    assert json.loads(metadata.get("labels", "[]")) == about.get("labels", [])
    assert {"license", "version"} <= metadata.keys()
