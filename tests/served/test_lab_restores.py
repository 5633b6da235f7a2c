"""A notebook that is stopped, or whose kernel is killed, leaves the server as its files say."""

from __future__ import annotations

import signal
import subprocess
import sys
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


def test_doctor_and_the_next_lab_report_a_changed_config_and_a_fresh_lab_restores_it(
    triton: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, repository = triton.http_url, Path(triton.repository)

    def gourmet(*words: str) -> str:
        return CliRunner().invoke(main, [*words, "--url", url]).output

    gourmet("config", MODEL, "--variant", "one-instance")
    output = gourmet("doctor", "--repository", str(repository))
    (line,) = (line for line in output.splitlines() if "serves another config than its files" in line)
    assert f"{MODEL} " in line
    assert f"gourmet config {MODEL} --reset --url {url}" in line
    monkeypatch.setattr("gourmet.commands.lab.DEFAULT", repository)
    assert [MODEL in str(finding) for finding in _strayed(url, named=True)] == [True]
    assert "food_first answers" in gourmet("load", "food_first")
    restore_models(url)
    assert instances(url) == 2
    with connect(url) as server:
        assert "food_first" not in server.ready_models()
        assert "food_classifier" in server.ready_models()
