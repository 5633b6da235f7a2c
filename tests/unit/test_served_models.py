"""What a served model needs without a Triton: shared runs, threads, devices, options and shapes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from gourmet.errors import GourmetError
from gourmet.served import instances
from gourmet.served import onnx_session as sessions
from gourmet.served import onnx_signature as signatures
from gourmet.served.batches import Executor, Feeds, Job, UnusableTensors, _answer_all, padded


class Doubling:
    """A network that doubles rows; 13 fails its run. It notes how many rows each run had."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, feeds: Feeds, requested: Sequence[str]) -> list[Any]:
        self.rows.append(len(feeds["x"]))
        if (feeds["x"] == 13).any():
            raise UnusableTensors("13 cannot be computed")
        outputs = {"double": 2 * feeds["x"], "negative": -feeds["x"]}
        return [outputs[name] for name in requested]


def job(*values: float, width: int = 1, requested: Sequence[str] = ("double",)) -> Job:
    return Job({"x": np.repeat(np.array(values, np.float32)[:, np.newaxis], width, axis=1)}, requested)


def test_requests_of_one_shape_share_a_run_and_get_their_own_rows_and_outputs() -> None:
    run = Doubling()
    jobs = [job(1, 2), job(3, width=2), job(4), job(5, requested=("negative",))]
    _answer_all(jobs, run, batched=True)
    assert run.rows == [4, 1], "rows of another width are a run of their own"
    assert [list(one.answer) for one in jobs] == [["double"]] * 3 + [["negative"]]
    answers = [next(iter(one.answer.values())).tolist() for one in jobs]
    assert answers == [[[2], [4]], [[6, 6]], [[8]], [[-5]]]


def test_a_request_that_fails_its_run_fails_alone() -> None:
    jobs = [job(1), job(13), job(2)]
    _answer_all(jobs, Doubling(), batched=True)
    assert [one.error and str(one.error) for one in jobs] == [None, "13 cannot be computed", None]
    assert jobs[2].answer["double"].tolist() == [[4]]


def test_without_batching_each_request_is_a_run() -> None:
    run = Doubling()
    _answer_all([job(1), job(2), job(3, 4)], run, batched=False)
    assert run.rows == [1, 1, 2]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_model_that_returns_another_number_of_rows_is_an_error(rows: int) -> None:
    jobs = [job(1, 2)]
    _answer_all(jobs, lambda feeds, requested: [np.zeros((rows, 1))], batched=True)
    assert "for 2 rows; a model with max_batch_size above 0 must return one row" in str(jobs[0].error)


def test_padded_runs_have_one_size_and_answers_of_the_rows_that_were_asked() -> None:
    run = Doubling()
    padded_run = padded(run, 4)
    for count in (3, 1, 2):
        (doubled,) = padded_run({"x": np.full((count, 2), count, np.float32)}, ["double"])
        assert doubled.tolist() == [[2 * count] * 2] * count
    assert run.rows == [4, 4, 4]


class Request:
    """What Triton's Python backend hands to a model; it counts how often it was checked."""

    checked = 0

    def __init__(self, *values: float, is_cancelled: bool = False) -> None:
        self._values, self._is_cancelled = values, is_cancelled

    def requested_output_names(self) -> list[str]:
        return ["double"]

    def inputs(self) -> list[Any]:
        array = np.array(self._values, np.float32)[:, np.newaxis]
        return [SimpleNamespace(name=lambda: "x", as_numpy=lambda: array)]

    def is_cancelled(self) -> bool:
        Request.checked += 1
        return self._is_cancelled


def error(message: str, code: str) -> tuple[str, str]:
    return code, message


error.INVALID_ARG, error.INTERNAL, error.CANCELLED = "invalid", "internal", "cancelled"  # type: ignore[attr-defined]
PB_UTILS = SimpleNamespace(
    TritonError=error,
    Tensor=lambda name, array: (name, array.tolist()),
    InferenceResponse=lambda tensors=(), error=None: error or tensors,
)
CONFIG = {"max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32"}]}


def test_each_request_has_a_response_or_an_error_of_its_kind() -> None:
    executor = Executor(PB_UTILS, Doubling(), CONFIG)
    assert executor.execute([Request(1, 2), Request(13)]) == [
        [("double", [[2], [4]])],
        ("invalid", "13 cannot be computed"),
    ]
    broken = Executor(PB_UTILS, lambda feeds, requested: 1 / 0, CONFIG)  # type: ignore[arg-type]
    assert broken.execute([Request(1)]) == [("internal", "division by zero")]


def test_while_one_is_cancelled_each_request_is_checked_and_else_ten_a_second() -> None:
    executor = Executor(PB_UTILS, Doubling(), CONFIG)
    Request.checked = 0
    gone = [Request(1, is_cancelled=True) for _ in range(3)]
    answers = executor.execute([*gone, *[Request(2) for _ in range(50)]])
    assert [answer[0] for answer in answers[:3]] == ["cancelled"] * 3
    assert all(answer == [("double", [[4]])] for answer in answers[3:])
    assert 4 <= Request.checked < 30, "the first that is not cancelled ends it"


# Threads and devices
def config(*groups: dict[str, Any], **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "instance_group": list(groups),
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "available_cpus", lambda: 4)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("groups", "parameter", "threads"),
    [
        ([], "", 4),
        ([{"count": 1}], "", 4),
        ([{"count": 2}], "", 2),
        ([{"count": 16}], "", 1),
        ([{"count": 1, "kind": "KIND_GPU", "gpus": [0, 1]}], "", 2),
        ([{"count": 1}, {"count": 3, "passive": True}], "", 4),
        ([{"count": 2}], "3", 3),
        ([{"count": 2}], "0", 2),
    ],
)
def test_threads_are_divided_among_instances_unless_a_parameter_sets_them(
    groups: list[dict[str, Any]], parameter: str, threads: int
) -> None:
    assert instances.cpu_threads(config(*groups, intra_op_thread_count=parameter)) == threads


@pytest.mark.parametrize("text", ["two", "-1"])
def test_a_parameter_that_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(GourmetError, match=r"intra_op_thread_count.*of model 'm'"):
        instances.cpu_threads(config(intra_op_thread_count=text))


_ROOT = "sys/fs/cgroup"
_FIRST = f"{_ROOT}/cpu"
_TWO_CPUS = {"cpu.cfs_quota_us": "200000\n", "cpu.cfs_period_us": "100000\n"}


def cgroup(root: Path, line: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": line, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("line", "files", "cpus"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ("0::/a/b\n", {f"{_ROOT}/a/cpu.max": "350000 100000\n", f"{_ROOT}/a/b/cpu.max": "max 1"}, 3),
        ("0::/host/only\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ("", {}, 8),
        # Version 1, as Docker and Kubernetes have it on older machines.
        ("4:cpu,cpuacct:/a\n0::/\n", {f"{_FIRST}/a/{name}": text for name, text in _TWO_CPUS.items()}, 2),
        ("4:cpuacct,cpu:/of/the/host\n", {f"{_FIRST}/{name}": text for name, text in _TWO_CPUS.items()}, 2),
        ("4:cpu:/\n", {f"{_FIRST}/cpu.cfs_quota_us": "-1\n", f"{_FIRST}/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_cgroup_quota_limits_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    assert instances.available_cpus(cgroup(tmp_path, line, files)) == cpus


@pytest.mark.parametrize(
    ("kind", "config_text", "device"),
    [
        ("CPU", "", instances.CPU),
        ("MODEL", "", instances.CPU),
        ("GPU", None, instances.Device("cuda", 1, required=False)),
        ("GPU", "instance_group [{ count: 1 kind: KIND_GPU }]", instances.Device("cuda", 1)),
        ("GPU", "instance_group [{ count: 1 }]", instances.Device("cuda", 1, required=False)),
        ("KIND_GPU", "# not KIND_GPU", instances.Device("cuda", 1, required=False)),
    ],
)
def test_only_a_config_that_names_a_gpu_insists_on_it(
    tmp_path: Path, kind: str, config_text: str | None, device: instances.Device
) -> None:
    if config_text is not None:
        (tmp_path / "config.pbtxt").write_text(config_text)
    args = {"model_instance_kind": kind, "model_instance_device_id": "1", "model_repository": str(tmp_path)}
    assert instances.wanted_device(args) == device


def test_the_preferred_config_may_require_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "gpu.pbtxt").write_text("instance_group [{ kind: KIND_GPU }]")
    (tmp_path / "config.pbtxt").write_text("instance_group [{ kind: KIND_AUTO }]")
    args = {"model_instance_kind": "GPU", "model_instance_device_id": "0", "model_repository": str(tmp_path)}
    for name, insists in (("", False), ("another", False), ("gpu", True)):
        monkeypatch.setenv(instances.CONFIG_NAME_ENV, name)
        assert instances.wanted_device(args).required == insists


# ONNX Runtime
def served(level: int = 0, **parameters: str) -> dict[str, Any]:
    return {
        **{"name": "m", "instance_group": [{"count": 1}], "optimization": {"graph": {"level": level}}},
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


def test_session_options_follow_the_config() -> None:
    threads = {"intra_op_thread_count": "3", "execution_mode": "1", "inter_op_thread_count": "2"}
    memory = {"enable_mem_arena": "0", "enable_mem_pattern": "false"}
    options = sessions.session_options(served(2, **threads, **memory))
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern


def test_options_default_to_every_optimisation_and_the_share_of_threads() -> None:
    options = sessions.session_options(served())
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
def test_unsupported_settings_of_a_backend_are_named(unsupported: dict[str, Any], says: str) -> None:
    whole = {"max_batch_size": 0, "input": [], "output": [], **unsupported}
    with pytest.raises(GourmetError, match=says):
        signatures.check_config(whole, signatures.OnnxSignature((), ()))


@pytest.mark.parametrize(
    ("given_config", "says"),
    [
        (served(level=7), "level is 7; it must be one of -1, 0, 1, 2"),
        (served(enable_mem_arena="perhaps"), '"enable_mem_arena" is .perhaps.; it must be one of 1, true'),
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
        sessions.open_engine(onnx_file, served(), instances.Device("cuda", 0), warn=pytest.fail)


@needs_no_cuda
def test_a_gpu_that_triton_chose_gives_way_to_the_cpu_with_a_warning(onnx_file: Path) -> None:
    warnings: list[str] = []
    device = instances.Device("cuda", 1, required=False)
    engine = sessions.open_engine(onnx_file, served(), device, warn=warnings.append)
    assert engine.name == "CPUExecutionProvider"
    assert len(warnings) == 1
    assert warnings[0].startswith("m runs on the CPU instead of cuda:1: KIND_GPU needs")


def declared(
    given: str = "given", data_type: str = "FP32", dims: Sequence[int] = (3,), **more: dict[str, Any]
) -> dict[str, Any]:
    """The config of a model with one input and one output, as Triton hands it out."""
    tensor = {"data_type": f"TYPE_{data_type}", "dims": list(dims)}
    return {
        **{"name": "m", "max_batch_size": 4, "instance_group": [{"count": 1}]},
        "input": [{"name": given, **tensor, **more.get("input", {})}],
        "output": [{"name": "same", **tensor}],
        "optimization": more.get("optimization", {}),
        "parameters": more.get("parameters", {}),
    }


FLOATS = "float[batch, 3]"
ACCELERATED = {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvino"}]}}
MANY = {"intra_op_thread_count": {"string_value": "many"}}


@pytest.mark.parametrize(
    ("tensor", "given_config", "says"),
    [
        (None, declared(), r"model.onnx cannot be opened as an ONNX model"),
        (
            FLOATS,
            declared("image"),
            r"needs an input 'given', the config names 'image'; .* 'image', the ONNX",
        ),
        (FLOATS, declared(data_type="INT32"), r"is TYPE_INT32 in the config and TYPE_FP32 in the ONNX file"),
        (FLOATS, declared(dims=[4]), r"is \[-1, 4\] in the config and \[-1, 3\] in the ONNX file"),
        ("float[1, 3]", declared(), r"but max_batch_size 4 needs a first dimension of any size"),
        (
            "bfloat16[batch, 3]",
            declared(),
            r"is tensor\(bfloat16\); this backend supports .*tensor\(float16\)",
        ),
        (FLOATS, declared(parameters=MANY), r'"intra_op_thread_count" of model .m. is .many.; it must be a'),
        (FLOATS, declared(optimization=ACCELERATED), "'openvino' is not supported here; supported: none"),
        (FLOATS, declared(input={"allow_ragged_batch": True}), r"allow_ragged_batch of input 'given' is not"),
    ],
    ids=["empty file", "name", "type", "dims", "batch", "element", "threads", "accelerator", "ragged"],
)
def test_a_file_and_a_config_that_do_not_fit_are_refused_with_both_sides(
    tmp_path: Path, tensor: str | None, given_config: dict[str, Any], says: str
) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    if tensor:
        text = f"test ({tensor} given) => ({tensor} same) {{ same = Identity(given) }}"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'), path)

    def check() -> None:
        engine = sessions.open_engine(path, given_config, instances.CPU, pytest.fail)
        signatures.check_config(given_config, engine.signature)

    with pytest.raises(GourmetError, match=says):
        check()
