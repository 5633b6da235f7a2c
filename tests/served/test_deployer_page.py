"""docs/deployer.md: its commands are run as they stand, and what it names is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.up import Up

from gourmet.commands.deployer import deployer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployer.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def test_every_flag_has_its_row() -> None:
    rows = "".join(line for line in PAGE.splitlines() if line.startswith("| `-"))
    for option in deployer.params:
        assert isinstance(option, click.Option)
        assert f"`{option.opts[0]}`" in rows


def test_what_is_said_to_be_mended_has_its_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*deployer*.py"))
    _, _, table = PAGE.partition("## What was, and what is")
    named = re.findall(r"`(test_\w+)` \|", table)
    assert len(named) == len([line for line in table.splitlines() if line.startswith("| ")]) - 1
    for name in named:
        assert f"def {name}(" in tests


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_its_commands_run_as_they_stand(tmp_path: Path) -> None:
    """In their order, in an empty folder; Triton on ports that are free here."""
    (tmp_path / "tmp").mkdir()
    up: Up | None = None
    try:
        for command in COMMANDS:
            words = command.split()
            if words[:2] == ["gourmet", "up"]:
                up = Up(
                    "--triton-only", f"--model-repository={tmp_path / 'repository'}", tmp=tmp_path / "tmp"
                )
                up.wait_for("ready after")
                continue
            here = command.replace("localhost:8001", f"127.0.0.1:{up.grpc}") if up else command
            done = subprocess.run(
                here.split(),
                cwd=tmp_path,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )
            assert done.returncode == 0, f"{here}\n{done.stdout}\n{done.stderr}"
    finally:
        if up:
            up.stop()
    assert "up" in [command.split()[1] for command in COMMANDS]
    assert (tmp_path / "repository" / "rnxt-onnx" / "1" / "model.onnx").exists()
    page = (tmp_path / "logs" / "index.html").read_text()
    assert "Which to take" in page
    assert "ts-script dynamic, 1 engine" in page
    for name in ("tables.md", "bench.csv", "bench.json"):
        assert (tmp_path / "logs" / name).exists()
