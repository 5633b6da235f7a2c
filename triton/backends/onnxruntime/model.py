"""ONNX Runtime behind Triton's Python backend: serves any model whose config names the backend "onnxruntime".

../README.md lists the supported settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import triton_python_backend_utils as pb_utils

from gourmet.errors import GourmetError
from gourmet.served import batches, malloc, manifest
from gourmet.served import onnx_session as sessions
from gourmet.served import onnx_signature as signatures
from gourmet.served.instances import cpu_threads, wanted_device

_FILE = "model.onnx"


class TritonPythonModel:
    """One instance of a model. Triton calls its methods from a single thread."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        config = auto_complete_model_config.as_dict()
        if not (config["input"] and config["output"]):
            try:
                path = manifest.deployed_file(Path(pb_utils.get_model_dir()), config, _FILE)
                signatures.complete(config, signatures.OnnxSignature.of(sessions.peek(path)))
            except GourmetError as exc:
                raise pb_utils.TritonModelException(str(exc)) from exc
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        version = Path(args["model_repository"], args["model_version"])
        try:
            path = manifest.deployed_file(version, config, _FILE)
            engine = sessions.open_engine(path, config, wanted_device(args), warn=pb_utils.Logger.log_warn)
            signatures.check_config(config, engine.signature)
        except GourmetError as exc:
            raise pb_utils.TritonModelException(f"model {args['model_name']!r}: {exc}") from exc
        pb_utils.Logger.log_info(
            f"{args['model_instance_name']} runs {path.name} on {engine.name} "
            f"with {cpu_threads(config)} CPU threads"
        )
        malloc.give_back()  # the file
        self._executor = batches.Executor(pb_utils, engine.run, config, (sessions.InvalidArgument,))

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return self._executor.execute(requests)
