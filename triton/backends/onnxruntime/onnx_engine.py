"""What runs the ONNX file of one instance: ONNX Runtime, or OpenVINO where the config says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_session as sessions
import onnx_signature as signatures

from gourmet.errors import GourmetError
from gourmet.runtime import batches, openvino_network
from gourmet.runtime.instances import Device, cpu_threads


@dataclass(frozen=True)
class FileEngine:
    """What the file takes and gives, how it is run, and by what."""

    name: str
    signature: signatures.OnnxSignature
    run: batches.Run


def open_engine(
    path: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> FileEngine:
    """The engine of one instance. What a config says of the CPU's engine does not hold on a GPU."""
    on_cpu = device.kind == "cpu" or not (device.required or sessions.has_cuda())
    if openvino_network.engine(config) == openvino_network.OPENVINO and on_cpu:
        return _openvino(path, config)
    session = sessions.open_session(path, config, device, warn)
    options = sessions.run_options(config)
    return FileEngine(
        session.get_providers()[0],
        signatures.OnnxSignature.of(session),
        lambda feeds, wanted: session.run(wanted, feeds, options),
    )


def _openvino(path: Path, config: Mapping[str, Any]) -> FileEngine:
    sessions.accelerator_options(config, "cpu_execution_accelerator", supported="")
    # Read by ONNX Runtime all the same: it knows the types by the names that the checks use.
    signature = signatures.OnnxSignature.of(sessions.peek(path))
    if text := [tensor.name for tensor in signature.inputs if tensor.triton_type == "TYPE_STRING"]:
        raise GourmetError(
            f"input {text[0]!r} is of strings, which OpenVINO is not given here: leave out the parameter "
            f'"{openvino_network.ENGINE_PARAMETER}"'
        )
    network = openvino_network.OpenVinoNetwork(
        path, cpu_threads(config), batched=config["max_batch_size"] > 0
    )
    return FileEngine("OpenVINO", signature, lambda feeds, wanted: network.run(wanted, feeds))
