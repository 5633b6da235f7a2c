"""The README's commands are run, and what they print has the form that it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gourmet.stack import run_file

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def examples() -> list[tuple[str, str]]:
    """Every command of a console block, with what the README says it prints."""
    pairs = []
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            pairs.append((command.split("  #")[0].strip(), output.strip()))
    return pairs


def shown(command: str) -> str:
    return next(output for example, output in examples() if example == command)


def form(text: str) -> str:
    """A text with its numbers masked, which differ from run to run."""
    return re.sub(r"\d+(\.\d+)?", "N", text.strip())


def run(command: str, port: int, triton: Any) -> str:
    done = subprocess.run(
        command.replace("localhost:5000", f"127.0.0.1:{port}"),
        shell=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TRITON_SERVER_URL": triton.http_url,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CURL = next(command for command, _ in examples() if command.startswith("curl "))
CONFIGS = [command for command, _ in examples() if command.startswith("gourmet config ")]
PERF = next(command for command, _ in examples() if command.startswith("gourmet perf-analyzer "))


def test_curl_prints_the_output_in_the_readme(python_web, triton) -> None:
    printed, documented = (
        json.loads(text + "}]}")["results"][0] for text in (run(CURL, python_web.port, triton), shown(CURL))
    )
    assert printed == {**documented, "probability": pytest.approx(documented["probability"], abs=0.02)}


@pytest.mark.slow
def test_the_config_commands_print_the_output_in_the_readme(python_web, triton) -> None:
    options, folders = triton.options, [str(triton.repository)]
    addresses = triton.http_url, triton.grpc_url, "", ""
    stack = run_file.RunningStack(os.getpid(), *addresses, folders, options.model_control)
    # As `gourmet up` lets a verb know what is served where.
    with run_file.run_file_for((options.http_port, options.grpc_port), {"stack": asdict(stack)}):
        for command in CONFIGS:
            assert form(run(command, python_web.port, triton)) == form(shown(command))


def test_perf_analyzer_prints_the_output_in_the_readme(python_web, triton) -> None:
    # Shorter and with no demand on how steady this machine is, and the figures do not matter here.
    quick = f"-u {triton.http_url} --measurement-interval 1000 --stability-percentage 999"
    printed = run(f"{PERF} {quick}", python_web.port, triton)
    documented = shown(PERF)
    assert form(documented.splitlines()[-1]) in form(printed)
