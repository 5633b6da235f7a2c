"""The commands with NVIDIA's flags in docs/models.md are run as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.up import GOURMET, Up

from gourmet.cli import main

ROOT = Path(__file__).parents[2]
_, _, PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").partition("flags of NVIDIA")
COMMANDS = re.findall(r"^\$ (gourmet .*)", PAGE, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_commands_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, in an empty folder; the networks are smaller ones, and the ports are free here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    up: Up | None = None
    try:
        for command in COMMANDS:
            if command.startswith("gourmet up"):
                up = Up(
                    "--triton-only", f"--model-repository={tmp_path / 'repository'}", tmp=tmp_path / "tmp"
                )
                up.wait_for("ready after")
                continue
            here = command.replace("localhost:8001", f"127.0.0.1:{up.grpc}") if up else command
            words = re.sub(r"--config \S+", "--config torchvision:squeezenet1_1", here).split()[1:]
            if words[0] == "deployer":  # in this process, which imports torch once
                done = CliRunner().invoke(main, words)
                assert done.exit_code == 0, f"{here}\n{done.output}"
            else:
                subprocess.run([GOURMET, *words], check=True, timeout=500)
    finally:
        if up:
            up.stop()
    assert [command.split()[1] for command in COMMANDS] == [
        "deployer",
        "up",
        "deployer",
        "perf-analyzer",
        "deployer",
    ]
    assert (tmp_path / "repository" / "rnxt-onnx" / "1" / "model.onnx").exists()
