"""Inputs of a benchmark: the examples of the system of a model, or noise of the right shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gourmet.bench.inputs import DataSource, rows_for
from gourmet.bench.results import LoadSpec
from gourmet.bench.workload import check_possible
from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.errors import UsageError
from gourmet.systems import registry


def info(system: str = "", dims: tuple[int, ...] = (3,), datatype: str = "FP32") -> ModelInfo:
    input_spec, output_spec = TensorSpec("x", datatype, (-1, *dims)), TensorSpec("y", "FP32", (-1, 2))
    return ModelInfo(
        "m", (input_spec,), (output_spec,), {"system": system} if system else {}, max_batch_size=8
    )


@pytest.mark.parametrize(
    "system", [name for name, known in registry.load_all().items() if known.task == "classification"]
)
def test_a_picture_system_s_default_kind_of_input_is_its_examples(system: str) -> None:
    known = registry.load(system)
    size = known.input_size  # type: ignore[attr-defined]
    channels = 1 if system == "digits" else 3
    rows = rows_for(info(system, (channels, size, size)), DataSource(4, 3))
    assert len(rows) == len(rows.pictures) == 4
    assert rows.tensor(rows.inputs[0], (0, 1)).shape == (2, channels, size, size)
    assert len(set(rows.pictures)) == 4
    again = rows_for(info(system, (channels, size, size)), DataSource(4, 3))
    assert again.pictures == rows.pictures


def test_a_text_system_s_inputs_are_text_files_or_its_examples(tmp_path: Path) -> None:
    text = TensorSpec("TEXT", "BYTES", (-1, 1))
    model = ModelInfo("m", (text,), (), {"system": "translator"}, max_batch_size=8)
    assert len({row.item() for row in rows_for(model, DataSource(4, 3)).values["TEXT"]}) == 4
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(f"Это {name}.")
    rows = rows_for(model, DataSource(9, folder=tmp_path))
    assert rows.examples == ("Это a.".encode(), "Это b.".encode())


def test_a_model_of_no_system_gets_noise_of_its_shape() -> None:
    rows = rows_for(info(), DataSource(3, 1))
    assert (len(rows), rows.pictures, rows.about) == (3, (), "3 rows of noise, seed 1")
    assert rows.tensor(rows.inputs[0], (0, 2)).dtype == np.float32


def test_rows_of_an_open_shape_come_from_arrays(tmp_path: Path) -> None:
    open_one = info(dims=(-1,))
    with pytest.raises(UsageError, match=r"has the open shape \[-1\]: give its rows as an \.npz"):
        rows_for(open_one, DataSource(2, 1))
    np.savez(tmp_path / "rows.npz", x=np.ones((3, 5), np.float32))
    rows = rows_for(open_one, DataSource(2, 1, tmp_path / "rows.npz"))
    assert rows.tensor(rows.inputs[0], (0, 1)).shape == (2, 5)
    with pytest.raises(UsageError, match=r"x is float32 \[2, 5\], and must be FP32 \[rows, 3\]"):
        rows_for(info(), DataSource(2, 1, tmp_path / "rows.npz"))


def test_a_folder_of_inputs_needs_a_system_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no system that says what its files mean"):
        rows_for(info(), DataSource(2, 1, tmp_path))
    with pytest.raises(UsageError, match=r"it has no files of \.jpeg, \.jpg"):
        rows_for(info("food11", (1,), "BYTES"), DataSource(2, 1, tmp_path))
    for name, example in zip("abc", registry.load("food11").examples(3, 1), strict=True):
        (tmp_path / f"{name}.jpg").write_bytes(example)
    rows = rows_for(info("food11", (1,), "BYTES"), DataSource(2, 1, tmp_path))
    assert (len(rows), rows.about) == (2, f"2 files of {tmp_path.name}")


def test_rows_of_other_lengths_share_no_request(tmp_path: Path) -> None:
    rows = rows_for(info(), DataSource(2, 1))
    rows.values["x"][1].resize((4,), refcheck=False)
    assert not rows.alike
    with pytest.raises(UsageError, match="differ in shape and cannot share a request"):
        check_possible(LoadSpec("m", batch=2), rows)
    check_possible(LoadSpec("m"), rows)
