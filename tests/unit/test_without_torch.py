"""What serves, and what teaches on the page, does without torch and without what trains and measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SERVES = (
    "gourmet.systems.translator.serving",
    "gourmet.systems.translator.contract",
    "gourmet.commands.translate",
    "app.features.translate",
    "gourmet.tasks.classification.learn_more",
    "gourmet.commands.learn_more",
    "gourmet.commands.deploy",
    "gourmet.commands.rollback",
)
FOREIGN = (
    *("torch", "torchvision", "transformers", "sacrebleu", "omegaconf"),
    *("onnx", "safetensors", "sklearn", "scipy"),
)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", SERVES)
def test_what_serves_or_teaches_imports_nothing_that_trains(module: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); import {module}; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-P", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()
    assert not set(loaded) & set(FOREIGN)
