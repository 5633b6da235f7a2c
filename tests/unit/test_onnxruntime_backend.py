"""The parts of the backends that need no Triton: stacking and splitting, options, shapes, names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest

from gourmet.errors import GourmetError
from gourmet.served import instances
from gourmet.served import onnx_session as sessions
from gourmet.served import onnx_signature as signatures


def config(level: int = 0, **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "instance_group": [{"count": 1}],
        "optimization": {"graph": {"level": level}},
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


def test_session_options_follow_the_config() -> None:
    options = sessions.session_options(
        config(
            level=2,
            intra_op_thread_count="3",
            execution_mode="1",
            inter_op_thread_count="2",
            enable_mem_arena="0",
            enable_mem_pattern="false",
        )
    )
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern


def test_options_default_to_every_optimisation_and_the_share_of_threads() -> None:
    options = sessions.session_options(config())
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    assert options.intra_op_num_threads == instances.available_cpus()
    assert options.enable_cpu_mem_arena


@pytest.mark.parametrize(
    ("unsupported", "says"),
    [
        ({"batch_input": [{}]}, "batch_input and batch_output are not supported"),
        ({"model_transaction_policy": {"decoupled": True}}, "decoupled transaction policy is not supported"),
        ({"sequence_batching": {"state": [{}]}}, "sequence_batching with control_input or state"),
        ({"model_operations": {"op_library_filename": ["ops.so"]}}, "custom operators"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_settings_of_the_backend_are_refused_by_name(
    unsupported: dict[str, Any], says: str
) -> None:
    whole = {"max_batch_size": 0, "input": [], "output": [], **unsupported}
    with pytest.raises(GourmetError, match=says):
        signatures.check_config(whole, signatures.OnnxSignature((), ()))


@pytest.mark.parametrize(
    ("given_config", "says"),
    [
        (config(level=7), "level is 7; it must be one of -1, 0, 1, 2"),
        (config(enable_mem_arena="perhaps"), '"enable_mem_arena" is .perhaps.; it must be one of 1, true'),
    ],
)
def test_options_that_make_no_sense_are_refused(given_config: dict[str, Any], says: str) -> None:
    with pytest.raises(GourmetError, match=says):
        sessions.session_options(given_config)


needs_no_cuda = pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="this ONNX Runtime has CUDA"
)


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    text = "test (float[rows, 2] x) => (float[rows, 2] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@needs_no_cuda
def test_a_required_gpu_that_is_missing_is_refused_with_the_available_devices(onnx_file: Path) -> None:
    with pytest.raises(GourmetError, match=r"needs ONNX Runtime's CUDA\w+; installed: .*CPUExecution"):
        sessions.open_engine(onnx_file, config(), instances.Device("cuda", 0), warn=pytest.fail)


@needs_no_cuda
def test_a_gpu_that_triton_chose_gives_way_to_the_cpu_with_a_warning(onnx_file: Path) -> None:
    warnings: list[str] = []
    device = instances.Device("cuda", 1, required=False)
    engine = sessions.open_engine(onnx_file, config(), device, warn=warnings.append)
    assert engine.name == "CPUExecutionProvider"
    assert len(warnings) == 1
    assert warnings[0].startswith("m runs on the CPU instead of cuda:1: KIND_GPU needs")


def declared(
    *,
    given: str = "given",
    same: str = "same",
    data_type: str = "FP32",
    dims: Sequence[int] = (3,),
    batch: int = 4,
    input_too: dict[str, Any] | None = None,
    optimization: dict[str, Any] | None = None,
    **parameters: str,
) -> dict[str, Any]:
    """The config of a model with one input and one output, as Triton hands it out."""
    tensor = {"data_type": f"TYPE_{data_type}", "dims": list(dims)}
    return {
        "name": "m",
        "max_batch_size": batch,
        "input": [{"name": given, **tensor, **(input_too or {})}],
        "output": [{"name": same, **tensor}],
        "instance_group": [{"count": 1}],
        "optimization": optimization or {},
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


FLOATS = "float[batch, 3]"
ACCELERATED = {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvino"}]}}
NO_ACCELERATOR = "'openvino' is not supported here; supported: none"


@pytest.mark.parametrize(
    ("tensor", "given_config", "says"),
    [
        (None, declared(), r"model.onnx cannot be opened as an ONNX model"),
        (
            FLOATS,
            declared(given="image"),
            r"needs an input 'given', the config names 'image'; .* 'image', the ONNX file has 'given'",
        ),
        (
            FLOATS,
            declared(data_type="INT32"),
            r"input 'given' is TYPE_INT32 in the config and TYPE_FP32 in the ONNX file",
        ),
        (
            FLOATS,
            declared(dims=[4]),
            r"input 'given' is \[-1, 4\] in the config and \[-1, 3\] in the ONNX file",
        ),
        (
            "float[1, 3]",
            declared(),
            r"'given' is \[1, 3\] in the ONNX file, but max_batch_size 4 needs a first dimension of any size",
        ),
        (
            "bfloat16[batch, 3]",
            declared(),
            r"'given' of the ONNX file is tensor\(bfloat16\); this backend supports .*tensor\(float16\)",
        ),
        (
            FLOATS,
            declared(intra_op_thread_count="many"),
            r'"intra_op_thread_count" of model .m. is .many.; it must be a whole number',
        ),
        (FLOATS, declared(optimization=ACCELERATED), NO_ACCELERATOR),
        (
            FLOATS,
            declared(input_too={"allow_ragged_batch": True}),
            r"allow_ragged_batch of input 'given' is not supported",
        ),
    ],
    ids=[*("empty file", "name", "type", "dims", "batch", "element"), *("threads", "accelerator", "ragged")],
)
def test_a_file_and_a_config_that_do_not_fit_are_refused_with_both_sides(
    tmp_path: Path, tensor: str | None, given_config: dict[str, Any], says: str
) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    if tensor:
        text = f"test ({tensor} given) => ({tensor} same) {{ same = Identity(given) }}"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'), path)
    with pytest.raises(GourmetError, match=says):
        signatures.check_config(
            given_config, sessions.open_engine(path, given_config, instances.CPU, pytest.fail).signature
        )
