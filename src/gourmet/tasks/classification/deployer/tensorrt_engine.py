"""TensorRT engines, built of the ONNX export by the GPU that is to run them, and asked on it.

The calls are those that the packages of TensorRT 10.16 and 11.4 both have; no GPU was at hand to run them.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.runtime.files import written_aside
from gourmet.tasks.classification.formats import INPUT, OPSET, OUTPUT, Format, export_onnx
from gourmet.tasks.classification.gate import Answers

# How long each kernel took on this GPU: the next engine is built in a fraction of the time.
TIMINGS: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gourmet" / "tensorrt-timings"
)


def engine_format(*, rows: int, usual_rows: int, workspace: int | None, half: bool) -> Format:
    """Engines of this GPU, for requests of up to so many rows; raise GourmetError where none can be built."""
    lacking = [
        *(["the package tensorrt"] if importlib.util.find_spec("tensorrt") is None else []),
        # Which a torch that was built for CPUs does not see either.
        *(["an NVIDIA GPU that torch can use"] if not torch.cuda.is_available() else []),
    ]
    if lacking:
        raise GourmetError(
            "--trt: a TensorRT engine is built on the GPU that runs it, and this machine lacks "
            f"{' and '.join(lacking)}: deploy with --onnx, and serve that or build an engine of it as "
            "docs/deployer.md says"
        )
    import tensorrt

    if half and not hasattr(tensorrt.BuilderFlag, "FP16"):
        raise UsageError(
            f"TensorRT {tensorrt.__version__} has no --trt-fp16, since it computes as the network is "
            "written: use --fp16, or TensorRT 10"
        )
    capability = compute_capability()
    file = f"model_{capability}.plan"
    builder = Builder(rows, usual_rows, workspace, half)
    return Format("tensorrt", "tensorrt_plan", file, builder.write, open_engine, {capability: file})


@dataclass(frozen=True)
class Builder:
    """How an engine is to be built."""

    rows: int  # the most a request
    usual_rows: int  # how many it is tuned for
    workspace: int | None  # bytes
    half: bool

    def write(self, network: nn.Module, example: torch.Tensor, path: Path) -> dict[str, Any]:
        """Build the engine of a network whose rows are as `example`'s, and say what it is."""
        import tensorrt as trt

        builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
        definition = builder.create_network(0)
        parser = trt.OnnxParser(definition, trt.Logger(trt.Logger.ERROR))
        with tempfile.TemporaryDirectory() as folder:
            onnx = Path(folder) / "model.onnx"
            export_onnx(network, example, onnx, INPUT, OUTPUT)
            if not parser.parse_from_file(str(onnx)):
                raise GourmetError(f"TensorRT cannot take this network: {parser.get_error(0)}")
        settings = builder.create_builder_config()
        if self.workspace is not None:
            settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, self.workspace)
        # Which has ten bits where float32 has 23, and is on unless it is said otherwise.
        settings.clear_flag(trt.BuilderFlag.TF32)
        if self.half:
            settings.set_flag(trt.BuilderFlag.FP16)
        profile = builder.create_optimization_profile()
        row = tuple(example.shape[1:])
        profile.set_shape(INPUT, (1, *row), (self.usual_rows, *row), (self.rows, *row))
        settings.add_optimization_profile(profile)
        timings = settings.create_timing_cache(TIMINGS.read_bytes() if TIMINGS.is_file() else b"")
        settings.set_timing_cache(timings, ignore_mismatch=False)
        plan = builder.build_serialized_network(definition, settings)
        if plan is None:
            raise GourmetError(
                "TensorRT found no way to run this network within --max_workspace_size "
                f"{self.workspace}: allow more"
            )
        path.write_bytes(plan)
        with written_aside(TIMINGS) as aside:
            aside.write_bytes(settings.get_timing_cache().serialize())
        return {
            "form": "TensorRT engine, fp16" if self.half else "TensorRT engine",
            "opset": OPSET,
            "tensorrt": trt.__version__,
            "gpu": torch.cuda.get_device_name(),
            "compute_capability": compute_capability(),
        }


def open_engine(path: Path) -> Answers:
    """Answers of an engine, on the GPU that it was built on."""
    import tensorrt as trt

    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise GourmetError(f"TensorRT {trt.__version__} cannot open {path.name} on this GPU: build it again")
    context = engine.create_execution_context()

    def ask(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        given = torch.from_numpy(np.ascontiguousarray(rows)).cuda()
        if not context.set_input_shape(INPUT, tuple(given.shape)):
            raise GourmetError(f"the engine takes no rows of shape {tuple(given.shape)}")
        answers = torch.empty(tuple(context.get_tensor_shape(OUTPUT)), dtype=given.dtype, device="cuda")
        context.set_tensor_address(INPUT, given.data_ptr())
        context.set_tensor_address(OUTPUT, answers.data_ptr())
        stream = torch.cuda.current_stream()
        if not context.execute_async_v3(stream.cuda_stream):
            raise GourmetError("the engine did not run: see what TensorRT logged")
        stream.synchronize()
        found: npt.NDArray[Any] = answers.cpu().numpy()
        return found

    return ask


def compute_capability() -> str:
    """Of this GPU, as Triton's configs have it."""
    return ".".join(map(str, torch.cuda.get_device_capability()))
