"""TorchScript behind Triton's Python backend: serves any model whose config names the backend "pytorch".

../README.md lists the supported settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import triton_python_backend_utils as pb_utils

from gourmet.errors import GourmetError
from gourmet.served import batches, manifest
from gourmet.served.instances import wanted_device


class TritonPythonModel:
    """One instance of a model. Triton calls its methods from a single thread."""

    def initialize(self, args: dict[str, str]) -> None:
        # OpenMP's threads would spin while they wait, on CPUs that others need. torch reads this on import.
        # Measured with EfficientNet-B0 on two cores, 2026-11-27, rows/s quiet and beside two busy programs:
        # one thread 30 and 20; two threads that spin 42 and 0.3 to 10; two that do not spin 17 and 13 to 20.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Import torch late: Triton also starts a process only to complete a model's config.
        import torch_network

        config = json.loads(args["model_config"])
        try:
            torch_network.check_config(config)
            version = Path(args["model_repository"], args["model_version"])
            path = manifest.deployed_file(version, config, "model.pt")
            network = torch_network.TorchNetwork(path, config, wanted_device(args), pb_utils.Logger.log_warn)
        except GourmetError as exc:
            raise pb_utils.TritonModelException(f"model {args['model_name']!r}: {exc}") from exc
        pb_utils.Logger.log_info(f"{args['model_instance_name']} runs {path.name} on {network}")
        self._executor = batches.Executor(pb_utils, network.run, config)

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return self._executor.execute(requests)
