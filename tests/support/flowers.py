"""A system of pictures that no line of the app names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CONTRACT = """
from pathlib import Path
from gourmet.pictures.classifier import PictureClassifier

class Flowers(PictureClassifier):
    {method}

SYSTEM = Flowers(
    name="flowers",
    title="Flowers",
    model_variable="FLOWERS_MODEL_NAME",
    default_model="flowers",
    labels=("rose", "tulip"),
    sample_file=Path({sample!r}),
    **{more},
)
"""


def write_flowers(systems: Path, sample: Path | None, method: str = "pass", **more: Any) -> None:
    """Write the contract of `flowers` into the folder of systems, with this member and these arguments."""
    folder = systems / "flowers"
    folder.mkdir()
    contract = _CONTRACT.format(method=method, sample=str(sample), more=more)
    (folder / "contract.py").write_text(contract, encoding="utf-8")
