"""The commands with NVIDIA's flags in docs/models.md, run as they stand beside a running Triton."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import gourmet, said
from support.triton import RunningTriton
from support.up import GOURMET

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
_, _, PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").partition("flags of NVIDIA")
COMMANDS = re.findall(r"^\$ gourmet (.*)", PAGE, re.MULTILINE)
SMALL = "torchvision:squeezenet1_1"


@pytest.fixture
def models(lab_triton: RunningTriton) -> Iterator[set[str]]:
    """The names of models that a test deploys; they are unloaded at its end."""
    names: set[str] = set()
    yield names
    for name in names:
        gourmet("remove", name, "--yes", "--url", lab_triton.http_url, "--repository", lab_triton.repository)


def test_the_commands_of_the_docs_run_as_they_stand(lab_triton: RunningTriton, models: set[str]) -> None:
    """The networks are smaller ones, and the Triton and its repository are those of the tests."""
    models |= {"rnxt-onnx", "small"}
    verbs = []
    for command in COMMANDS:
        words = re.sub(r"--config \S+", f"--config {SMALL}", command)
        words = words.replace("localhost:8001", lab_triton.grpc_url).replace(
            "localhost:8000", lab_triton.http_url
        )
        words = re.sub(r"(?<![\w/])repository(?![\w-])", str(lab_triton.repository), words)
        verbs.append(words.split()[0])
        if verbs[-1] == "deployer":
            *flags, network = words.partition(" -- ")
            output = said(*flags[0].split(), "--triton-server-url", lab_triton.grpc_url, *network.split())
            assert re.search(r"^\S+ answers$", output, re.MULTILINE), output
        elif verbs[-1] != "up":
            subprocess.run([GOURMET, *words.split()], check=True, timeout=250)
    assert verbs == ["deployer", "up", "bench", "deployer"]


def test_a_server_of_another_repository_is_reported_and_nothing_stays(
    lab_triton: RunningTriton, tmp_path: Path
) -> None:
    to = ("--triton-server-url", lab_triton.http_url, "--save-dir", tmp_path / "models")
    output = said("deployer", "--onnx", *to, "--config", SMALL, "--batch_size", 2, status=1)
    assert "nothing was written" in output
    left = [path.name for path in (tmp_path / "models").rglob("*") if path.is_file()]
    assert set(left) <= {".gourmet.lock"}
