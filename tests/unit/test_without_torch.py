"""What serves texts does without torch and transformers, and without what learns and measures them."""

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
)
FOREIGN = ("torch", "torchvision", "transformers", "sacrebleu", "omegaconf", "onnx")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", SERVES)
def test_what_serves_texts_imports_nothing_that_learns_them(module: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); import {module}; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-P", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()
    assert not set(loaded) & set(FOREIGN)
