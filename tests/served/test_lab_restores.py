"""A notebook that is stopped, or whose kernel is killed, leaves the server as its files say."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gourmet.cli import main
from gourmet.commands.lab import _strayed
from gourmet.lab.restoring import restore_models
from gourmet.serving.connect import connect
from gourmet.serving.waiting import wait_until

MODEL = "food_classifier_onnx"
# What a kernel does: ask for the end to be cleaned up, change a config, and go on until it is ended.
KERNEL = """
import os, sys, time
from click.testing import CliRunner
from gourmet.cli import main
from gourmet.lab.exercises import begin
url, os.environ["GOURMET_LAB"] = sys.argv[1:]
os.environ["TRITON_SERVER_URL"] = url
begin(8, "food_classifier_onnx")
done = CliRunner().invoke(main, ["config", "food_classifier_onnx", "--variant", "one-instance", "--url", url])
print(f"ended with {done.exit_code}", flush=True)
time.sleep(300)
"""


def instances(url: str) -> int:
    with connect(url) as triton:
        return int(triton.config(MODEL)["instance_group"][0]["count"])


@pytest.fixture
def changed(triton: Any) -> Iterator[None]:
    """A server that serves another config than its files say."""
    arguments = ["config", MODEL, "--url", triton.http_url]
    assert CliRunner().invoke(main, [*arguments, "--variant", "one-instance"]).exit_code == 0
    yield
    CliRunner().invoke(main, [*arguments, "--reset", "--repository", str(triton.repository)])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_configs_are_restored_however_the_kernel_ends(
    triton: Any, how: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-P", "-c", KERNEL, triton.http_url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout
        assert "ended with 0\n" in iter(kernel.stdout.readline, "")
        assert instances(triton.http_url) == 1
        kernel.send_signal(how)
    wait_until(
        lambda: instances(triton.http_url) == 2, 60, "the config of the files serves again", poll_s=0.2
    )


def test_doctor_and_the_next_lab_report_a_changed_config_with_the_command(
    triton: Any, changed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = (
        CliRunner()
        .invoke(main, ["doctor", "--url", triton.http_url, "--repository", str(triton.repository)])
        .output
    )
    line = next(
        candidate for candidate in output.splitlines() if "serves another config than its files" in candidate
    )
    assert f"{MODEL} " in line
    assert f"gourmet config {MODEL} --reset --url {triton.http_url}" in line
    assert output.count("serves another config") == 1, output
    monkeypatch.setattr("gourmet.commands.lab.DEFAULT", Path(triton.repository))
    assert [MODEL in str(finding) for finding in _strayed(triton.http_url, named=True)] == [True]


def test_a_fresh_lab_restores_configs_and_unloads_study_models(triton: Any, changed: None) -> None:
    assert CliRunner().invoke(main, ["load", "food_first", "--url", triton.http_url]).exit_code == 0
    restore_models(triton.http_url)
    assert instances(triton.http_url) == 2
    with connect(triton.http_url) as server:
        assert "food_first" not in server.ready_models()
        assert "food_classifier" in server.ready_models()
