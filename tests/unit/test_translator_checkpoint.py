"""The checkpoint that comes out of the served translator is the one that went in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "translator_checkpoint.py"


@pytest.mark.slow
def test_the_served_package_gives_its_checkpoint_back_bit_for_bit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", SCRIPT, "--out", tmp_path], capture_output=True, text=True, check=True
    )
    assert "bit for bit" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.safetensors", "config.json", "source.spm", "target.spm", "vocab.json",
    ]  # fmt: skip
