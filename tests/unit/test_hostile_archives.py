"""Zips of somebody: packages of models that generate, photos with captions, checkpoints of runs."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from support import hostile_inputs
from support.triton import MODELS
from translator_checkpoint import checkpoint

from gourmet.errors import GourmetError
from gourmet.runtime.decoding import package
from gourmet.systems.captioner.data import decoded, photos
from gourmet.systems.captioner.evaluate import squashed_pixels
from gourmet.systems.captioner.seen import pixels
from gourmet.systems.translator.serving import TranslatorNetwork
from gourmet.tasks.system_parts import BadData
from gourmet.training.files import load_tensors
from gourmet.training.loop import as_it_was_saved

# PostScript, for which Pillow starts Ghostscript.
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """How many megabytes Python had at most."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1] >> 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", hostile_inputs.packages())
def test_a_package_that_is_none_is_refused_and_costs_no_more_than_its_size(
    name: str, tmp_path: Path, peak: Callable[[], int]
) -> None:
    version = tmp_path / "translator" / "1"
    version.mkdir(parents=True)
    (version / package.FILE).write_bytes(hostile_inputs.packages()[name])
    with pytest.raises(GourmetError, match=r"[Dd]eploy the model again|keep both models"):
        TranslatorNetwork.open(package.open_version(version, {}), 1)
    assert peak() < 100


def a_list_of(parts: int) -> bytes:
    """A zip of nothing but the list of so many parts, 47 bytes each."""
    one = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", *[20, 3, 20], *[0] * 8, 1, *[0] * 6) + b"a"
    return one * parts + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, parts * len(one), 0, 0)


@pytest.mark.parametrize("name", [package.FILE, "photos.zip", "checkpoint.pt", "weights.pth"])
def test_a_zip_with_a_long_list_of_parts_costs_little(
    name: str, tmp_path: Path, peak: Callable[[], int]
) -> None:
    """400,000 of them took 180 MB and five seconds, of the process that asked."""
    few, path = a_list_of(1), tmp_path / name
    with zipfile.ZipFile(io.BytesIO(few)) as archive:
        assert archive.namelist() == ["a"], "it would be read"
    path.write_bytes(a_list_of(400_000))
    read: dict[str, Callable[[], object]] = {
        package.FILE: lambda: package.read(path),
        "photos.zip": lambda: photos(captioned(tmp_path, b"", zipped=False), "validation"),
        "checkpoint.pt": lambda: as_it_was_saved(path),
        "weights.pth": lambda: load_tensors(path),
    }
    with pytest.raises((GourmetError, ValueError), match="its list of parts has more than 16 MB"):
        read[name]()
    assert peak() < 50


def test_a_package_that_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    for name, path in hostile_inputs.no_files(tmp_path, ".zip").items():
        (tmp_path / name / "1").mkdir(parents=True)
        path.rename(tmp_path / name / "1" / package.FILE)
        for config in ({}, {"parameters": {"manifest": {"string_value": "required"}}}):
            said = {"file": package.FILE, "sha256": "0"}
            (tmp_path / name / "1" / "manifest.json").write_text(json.dumps(said))
            with pytest.raises(GourmetError, match="cannot be read"):
                package.open_version(tmp_path / name / "1", config)
        with pytest.raises(GourmetError, match="cannot be read"):
            package.read(tmp_path / name / "1" / package.FILE)


@pytest.mark.parametrize("name", ["another vocabulary", "parts that share their bytes", "changed"])
def test_a_checkpoint_is_made_of_no_package_but_the_one_of_its_manifest(name: str, tmp_path: Path) -> None:
    version = tmp_path / "translator" / "1"
    shutil.copytree(MODELS / "translator" / "1", version)
    (version / package.FILE).write_bytes(hostile_inputs.packages().get(name, b"changed"))
    if name != "changed":
        about = json.loads((version / "manifest.json").read_text())
        about["sha256"] = hashlib.sha256((version / package.FILE).read_bytes()).hexdigest()
        (version / "manifest.json").write_text(json.dumps(about))
    ran = CliRunner().invoke(checkpoint, ["--version", str(version), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 1
    assert re.fullmatch(r"Error: .+\n", ran.output), ran.output
    assert not (tmp_path / "out").exists()


def captioned(folder: Path, photo: bytes, *, zipped: bool = True) -> Path:
    (folder / "splits").mkdir()
    (folder / "splits" / "dev.txt").write_text("a.jpg\n")
    (folder / "captions.tsv").write_text("a.jpg\ta dog\n")
    if zipped:
        with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
            archive.writestr("a.jpg", photo)
    return folder


@pytest.mark.parametrize("decode", [pixels, squashed_pixels])
def test_a_photo_to_learn_from_is_one_that_may_be_decoded(
    decode: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name says: Pillow takes some fifty formats, and starts a program for one of them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho > {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    data = captioned(tmp_path, EPS)
    with pytest.raises(BadData, match=r"a\.jpg cannot be used"):
        list(decoded(data, photos(data, "validation"), 32, decode))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "name", ["fifo", "zeros", "folder", "half a gigabyte deflated", "encrypted", "damaged"]
)
def test_photos_that_are_not_a_zip_that_can_be_read_are_said(name: str, tmp_path: Path) -> None:
    data = captioned(tmp_path, b"")
    (data / "photos.zip").unlink()
    archives = {
        each: content.replace(b"Bread/1.jpg", b"a.jpg      ")
        for each, content in hostile_inputs.archives().items()
    }
    if name in archives:
        (data / "photos.zip").write_bytes(archives[name])
        (data / "splits" / "dev.txt").write_text("a.jpg\n")
    else:
        (tmp_path / "no").mkdir()
        hostile_inputs.no_files(tmp_path / "no", ".zip")[name].rename(data / "photos.zip")
    with pytest.raises(BadData):
        list(decoded(data, photos(data, "validation"), 32, pixels))


def test_the_parts_of_a_checkpoint_have_no_more_bytes_than_its_file(tmp_path: Path) -> None:
    saved = io.BytesIO()
    torch.save({"a": torch.zeros(1 << 20, dtype=torch.uint8)}, saved)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(saved.getvalue())
    assert as_it_was_saved(path)["a"].shape == (1 << 20,)
    path.write_bytes(hostile_inputs.sharing_bytes(saved.getvalue(), 500))
    with pytest.raises(ValueError, match="more bytes than the file"):
        as_it_was_saved(path)
