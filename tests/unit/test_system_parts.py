"""A system's files hold what the verbs ask for; one that does not is named, with what is missing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from gourmet.errors import GourmetError, UnknownSystem
from gourmet.systems import parts, registry
from gourmet.systems.parts import SystemParts
from gourmet.training.task import Solving, TrainOptions


@pytest.mark.parametrize("system", ["digits", "food11"])
def test_the_parts_of_a_system_fulfil_their_protocols(system: str) -> None:
    parts = SystemParts(system)
    assert parts.export.formats
    if not isinstance(parts.training, Solving):
        assert parts.training.recipe(TrainOptions(epochs=1))
    assert callable(parts.evaluation.load)
    assert parts.data


def test_the_smallest_system_of_the_page_has_every_part_that_verbs_ask_for(systems_folder: Path) -> None:
    (systems_folder / "coins").mkdir()
    page = inspect.cleandoc(parts.__doc__ or "")
    files = re.findall(r"^    # src/gourmet/systems/(coins/\w+\.py)(.*?)(?=^    # src|\Z)", page, re.S | re.M)
    for path, code in files:
        (systems_folder / path).write_text(inspect.cleandoc(f"\n    #{code}"))
    coins = SystemParts("coins")
    assert registry.load("coins") == coins.classifier
    assert coins.data.parts(systems_folder) is not None
    assert coins.training.recipe(TrainOptions(epochs=1)).epochs == 1
    assert coins.evaluation.load
    assert coins.export.formats == ("onnx",)


@pytest.fixture
def folder(systems_folder: Path) -> Path:
    """A system whose folder is nearly empty."""
    (systems_folder / "unfinished").mkdir()
    (systems_folder / "unfinished" / "contract.py").write_text("SYSTEM = None\n")
    return systems_folder / "unfinished"


def test_a_file_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(UnknownSystem, match=r"'unfinished' has no train\.py"):
        _ = SystemParts("unfinished").training


@pytest.mark.parametrize("content", ["", "TRAINING = 3\n"])
def test_an_object_that_is_missing_or_of_another_kind_is_named(content: str, folder: Path) -> None:
    (folder / "train.py").write_text(content)
    with pytest.raises(
        GourmetError, match=r"train\.py has no TRAINING that fulfils gourmet\.training\.task\.Tra"
    ):
        _ = SystemParts("unfinished").training
    with pytest.raises(
        GourmetError, match=r"contract\.py has no SYSTEM that fulfils gourmet\.contracts\.System"
    ):
        registry.load("unfinished")
