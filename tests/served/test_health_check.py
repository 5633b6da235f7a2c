"""The containers' health check, asked of a real Triton: what hangs is ended, what is only late is not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.triton import MODELS, ROOT

from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import wait_until
from gourmet.stack.triton_server import TritonOptions, TritonServer

pytestmark = pytest.mark.slow

SCRIPT = (ROOT / "scripts" / "containers" / "ask_models.py").read_text()
SLEEPS = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("it slept")) for _ in requests]
"""


@pytest.mark.parametrize(("seconds", "ends"), [(600, True), (4, False)], ids=["hangs", "is late"])
def test_a_container_whose_model_hangs_ends_at_its_sixth_health_check(
    seconds: float, ends: bool, tmp_path: Path
) -> None:
    model = tmp_path / "models" / "food_classifier"
    shutil.copytree(MODELS / "food_classifier", model, ignore=shutil.ignore_patterns("model.pt"))
    (model / "1" / "model.py").write_text(SLEEPS.format(seconds=seconds))
    http, grpc, metrics = free_ports(3)
    options = TritonOptions((model.parent,), http_port=http, grpc_port=grpc, metrics_port=metrics)
    server = TritonServer(options, lambda line: None)
    triton = server.start()
    try:
        server.wait_until_live()
        here = {"ADDRESS": f'"{options.http_url}"', "TIMEOUT_S": "3.0", "FIRST_PROCESS": str(triton.pid)}
        script = SCRIPT
        for name, value in here.items():
            script = re.sub(rf"^{name} = .*", f"{name} = {value}", script, flags=re.MULTILINE)
        for _ in range(6):
            assert triton.exit_status() is None
            checked = subprocess.run(
                [sys.executable, "-P", "-c", script],
                env={**os.environ, "TMPDIR": str(tmp_path)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert checked.returncode == 1
            assert "food_classifier does not answer: Triton did not answer within 3 s" in checked.stderr
        if ends:
            wait_until(lambda: triton.exit_status() is not None, 60, "it was not ended")
        else:
            assert triton.exit_status() is None
    finally:
        server.close()
