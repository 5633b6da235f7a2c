"""A user's versions of a shipped system lie in the user's folder, and replace the shipped ones there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.life import git_status, home, verb
from support.up import Up

from gourmet.learning.learn_more import Learned
from gourmet.repository.gate import Comparison, Measure
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.training.linear_layer import Layer, OnnxLayer

__all__ = ["home"]  # the fixture
MODEL = "food_classifier_onnx"


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    """What learning a few photos might have made."""
    layer = OnnxLayer.read(DEFAULT_REPOSITORY / "food_classifier" / "1" / "model.onnx").layer
    own = [{"label": "Rice", "photos": 8, "measured": 8, "before": 7, "now": 8, "more": 0}]
    new = Layer(layer.weight * np.float32(1.001), layer.bias)
    kept = Comparison("", "", [Measure("all", 100, 80.0, 80.0, 2.0)])
    Learned(new, layer, kept, own).write(tmp_path / "learned.npz")
    return tmp_path / "learned.npz"


@pytest.fixture
def start(home: Path, tmp_path: Path) -> Callable[[], Up]:
    return lambda: Up("--triton-only", "--system=food11", tmp=tmp_path / "tmp")


def served() -> tuple[Any, str]:
    row = max((row for row in json.loads(verb("list", "--json")) if row["model"] == MODEL), key=_version)
    return row["version"], row["state"]


def _version(row: dict[str, Any]) -> int:
    return int(row["version"])


def test_versions_of_shipped_models_go_to_the_users_folder_and_shipped_ones_come_back(
    start: Callable[[], Up], home: Path, learned: Path
) -> None:
    clone, own = git_status(), home / "models"
    shipped = sorted(DEFAULT_REPOSITORY.glob("food*/*"))
    with start():
        assert served() == (1, "serves")
        words = ("deploy", "food11", "--weights", learned, "--format", MODEL)
        assert f"{own / MODEL / '2'}" in verb(*words)
        assert [path.name for path in own.iterdir() if path.is_dir()] == [MODEL], "no copies"
        assert served() == (2, "serves")
    with start():
        assert served() == (2, "serves")
        assert "version 1 serves" in verb("rollback", MODEL)
        assert "version 2 is back, it serves" in verb("rollback", MODEL, "--undo")
        assert f"{MODEL} answers" in verb("doctor", succeeds=False), "other systems were not started"
        assert "the shipped version serves again" in verb("remove", MODEL, "--yes")
        assert served() == (1, "serves")
        assert not (own / MODEL).exists()
        assert "cannot be made" in verb(
            "deploy", "food11", "--weights", learned, "--format", "no", succeeds=False
        )
    assert not [path for path in own.iterdir() if path.is_dir()]
    assert (git_status(), sorted(DEFAULT_REPOSITORY.glob("food*/*"))) == (clone, shipped)
