"""TensorRT engines, built of the ONNX export by the GPU that is to run them, and asked on it.

The calls are those that the packages of TensorRT 10.16 and 11.4 both have; no GPU was at hand to run them.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.tasks.classification.formats import INPUT, OPSET, OUTPUT, Format, write_onnx
from gourmet.tasks.classification.gate import Answers


def engine_format(rows: int, usual_rows: int, workspace: int, *, half: bool) -> Format:
    """Return the format of engines for this GPU, tuned for requests of `usual_rows` rows.

    Raise GourmetError where none can be built; `workspace` is how many bytes the builder may take.
    """
    lacking = [
        *(["the package tensorrt"] if importlib.util.find_spec("tensorrt") is None else []),
        # Which a torch that was built for CPUs does not see either.
        *(["an NVIDIA GPU that torch can use"] if not torch.cuda.is_available() else []),
    ]
    if lacking:
        raise GourmetError(
            "--trt: a TensorRT engine is built on the GPU that runs it, and this machine lacks "
            f"{' and '.join(lacking)}: deploy with --onnx, and serve that or build an engine of it as "
            "docs/models.md says"
        )
    import tensorrt as trt

    if half and not hasattr(trt.BuilderFlag, "FP16"):
        raise UsageError(
            f"TensorRT {trt.__version__} has no --trt-fp16, since it computes as the network is "
            "written: use --fp16, or TensorRT 10"
        )
    capability = ".".join(map(str, torch.cuda.get_device_capability()))  # as Triton's configs have it

    def write(network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
        """Build the engine of a network whose rows are like those of `example`, and return its facts."""
        builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
        definition = builder.create_network(0)
        parser = trt.OnnxParser(definition, trt.Logger(trt.Logger.ERROR))
        with tempfile.TemporaryDirectory() as folder:
            onnx = Path(folder) / "model.onnx"
            write_onnx(network, example, onnx, INPUT, OUTPUT)
            if not parser.parse_from_file(str(onnx)):
                raise GourmetError(f"TensorRT cannot take this network: {parser.get_error(0)}")
        settings = builder.create_builder_config()
        settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
        # Which has ten bits where float32 has 23, and is on unless it is said otherwise.
        settings.clear_flag(trt.BuilderFlag.TF32)
        if half:
            settings.set_flag(trt.BuilderFlag.FP16)
        profile = builder.create_optimization_profile()
        row = tuple(example.shape[1:])
        profile.set_shape(INPUT, (1, *row), (usual_rows, *row), (rows, *row))
        settings.add_optimization_profile(profile)
        plan = builder.build_serialized_network(definition, settings)
        if plan is None:
            raise GourmetError(
                f"TensorRT found no way to run this network within --max_workspace_size {workspace}: "
                "allow more"
            )
        path.write_bytes(plan)
        return {
            "form": "TensorRT engine, fp16" if half else "TensorRT engine",
            "opset": OPSET,
            "tensorrt": trt.__version__,
            "gpu": torch.cuda.get_device_name(),
            "compute_capability": capability,
        }

    file = f"model_{capability}.plan"
    return Format("tensorrt", "tensorrt_plan", file, write, open_engine, {capability: file})


def open_engine(path: Path) -> Answers:
    """Open an engine on the GPU that it was built on."""
    import tensorrt as trt

    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    context = engine.create_execution_context()

    def ask(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        tensor = torch.from_numpy(np.ascontiguousarray(rows)).cuda()
        context.set_input_shape(INPUT, tuple(tensor.shape))
        answers = torch.empty(tuple(context.get_tensor_shape(OUTPUT)), dtype=tensor.dtype, device="cuda")
        context.set_tensor_address(INPUT, tensor.data_ptr())
        context.set_tensor_address(OUTPUT, answers.data_ptr())
        stream = torch.cuda.current_stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise GourmetError("the engine did not run: see what TensorRT logged")
        stream.synchronize()
        scores: npt.NDArray[Any] = answers.cpu().numpy()
        return scores

    return ask
