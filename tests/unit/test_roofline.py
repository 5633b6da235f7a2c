"""Operations and bytes against what one computes by hand; machines; the verb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cli import gourmet, said

from gourmet.bench import roofline
from gourmet.bench.roofline import Counted, Layer, Machine, Roofline, count
from gourmet.errors import GourmetError
from gourmet.repository.models import DEFAULT_REPOSITORY

Count = Callable[..., Counted]

EVEN = Machine("even", fp32=10.0, int8=40.0, bandwidth=1.0, source="made up")


@pytest.fixture
def counted(tmp_path: Path) -> Count:
    """Counts a graph in ONNX text, with weights of ones of the shapes that are named."""

    def of(text: str, weights: dict[str, tuple[str, tuple[int, ...]]] | None = None) -> Counted:
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "my": 1]> test {text}')
        for name, (element, shape) in (weights or {}).items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, element), name))
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        return count(path)

    return of


BY_HAND = {
    # 2 operations × 3 channels × 3×3 kernel for each of 8 × 32 × 32 results, and one for the bias.
    "conv with bias": (
        "(float[n,3,32,32] x) => (float[n,8,32,32] y) { y = Conv <pads=[1,1,1,1]> (x, w, b) }",
        {"w": ("float32", (8, 3, 3, 3)), "b": ("float32", (8,))},
        (8 * 32 * 32 * (2 * 27 + 1), 4 * (8 * 27 + 8), 4 * (3 * 32 * 32 + 8 * 32 * 32)),
    ),
    "conv by channel, stride 2": (
        "(float[n,6,8,8] x) => (float[n,6,4,4] y) "
        "{ y = Conv <group=6, strides=[2,2], pads=[1,1,1,1]> (x, w) }",
        {"w": ("float32", (6, 1, 3, 3))},
        (6 * 4 * 4 * 2 * 9, 4 * 6 * 9, 4 * (6 * 64 + 6 * 16)),
    ),
    "gemm with bias": (
        "(float[n,20] x) => (float[n,10] y) { y = Gemm <transB=1> (x, w, b) }",
        {"w": ("float32", (10, 20)), "b": ("float32", (10,))},
        (2 * 20 * 10 + 10, 4 * 210, 4 * 30),
    ),
    "an activation is computed on the way out": (
        "(float[n,20] x) => (float[n,10] y) { h = Gemm(x, w)  y = Relu(h) }",
        {"w": ("float32", (20, 10))},
        (2 * 20 * 10 + 10, 4 * 200, 4 * 30),
    ),
    "transposed conv": (
        "(float[n,4,5,5] x) => (float[n,2,10,10] y) { y = ConvTranspose <strides=[2,2]> (x, w) }",
        {"w": ("float32", (4, 2, 2, 2))},
        (2 * 4 * 25 * 2 * 4, 4 * 32, 4 * (100 + 200)),
    ),
    "an activation of its own": ("(float[n,20] x) => (float[n,20] y) { y = Relu(x) }", {}, (20, 0, 4 * 40)),
    "average of everything": (
        "(float[n,3,8,8] x) => (float[n,3,1,1] y) { y = GlobalAveragePool(x) }",
        {},
        (3 * 64, 0, 4 * (3 * 64 + 3)),
    ),
    "largest of each window": (
        "(float[n,3,8,8] x) => (float[n,3,4,4] y) { y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x) }",
        {},
        (3 * 16 * 4, 0, 4 * (3 * 64 + 3 * 16)),
    ),
    "a view moves nothing": ("(float[n,3,8] x) => (float[n,24] y) { y = Flatten(x) }", {}, (0, 0, 0)),
}


@pytest.mark.parametrize("layer", BY_HAND)
def test_layers_are_counted_as_by_hand(counted: Count, layer: str) -> None:
    text, weights, totals = BY_HAND[layer]
    result = counted(text, weights)
    assert tuple(result.totals.values()) == totals  # operations, bytes of weights, bytes moved
    assert result.unknown == ()
    assert result.batches


def test_a_quantized_layer_moves_bytes_and_not_floats(counted: Count) -> None:
    text = """
        (uint8[n,16] q) => (uint8[n,8] r) {
            x = DequantizeLinear(q, scale, zero)
            u = DequantizeLinear(w, scale, zero8)
            h = MatMul(x, u)
            y = Relu(h)
            r = QuantizeLinear(y, scale, zero)
        }
    """
    weights = {"w": ("int8", (16, 8)), "scale": ("float32", ()), "zero": ("uint8", ()), "zero8": ("int8", ())}
    result = counted(text, weights)
    (layer,) = result.layers
    assert layer.quantized
    assert layer.operations == 2 * 16 * 8 + 8 + 4 * 8
    assert layer.moved_bytes == 16 + 8
    # The weights, and the scale and zero point with which the result is quantized.
    assert layer.weight_bytes == 16 * 8 + 4 + 1


def test_unknown_operators_count_as_zero_and_are_named(counted: Count) -> None:
    result = counted("(float[n,3,3] x) => (float[n] y) { h = my.Guess(x)  y = Relu(h) }")
    assert result.totals["operations"] == 0
    assert result.unknown == ("Guess (1×)", "Relu of unknown size (1×)")


def test_sizes_that_stay_open_are_refused_and_a_batch_of_one_is_noticed(counted: Count) -> None:
    with pytest.raises(GourmetError, match="leaves sizes of x open: export it with all sizes"):
        counted("(float[1,length,4] x) => (float[1,length,4] y) { y = Relu(x) }")
    fixed = counted("(float[1,5,4] x) => (float[1,5,4] y) { y = Relu(x) }")
    assert (fixed.totals["operations"], fixed.batches) == (20, False)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x07"], ids=["empty", "text", "no graph"])
def test_a_file_that_is_no_model_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(GourmetError, match=r"m\.onnx is not a valid ONNX"):
        count(tmp_path / "m.onnx")


def test_contradictory_shapes_are_reported(counted: Count) -> None:
    with pytest.raises(GourmetError, match="cannot be sized"):
        counted("(float[n,20] x) => (float[n,10] y) { y = Gemm(x, w) }", {"w": ("float32", (7, 10))})


def test_a_layer_is_bound_by_the_slower_of_compute_and_memory() -> None:
    # The ridge of the even machine is at 10 operations a byte.
    layer = Layer("a", "Gemm", False, operations=1000, weight_bytes=190, moved_bytes=10)
    assert (layer.seconds(EVEN, 1), layer.intensity(1)) == (200, 5)
    # b × 1000 operations on 190 + b × 10 bytes reach 10 a byte at b = 1900 / 900.
    assert layer.from_batch(EVEN) == 3
    assert [layer.is_memory_bound(EVEN, batch) for batch in (1, 2, 3)] == [True, True, False]
    assert Layer("a", "Relu", False, 10, 0, 80).from_batch(EVEN) is None  # what a row moves is too much
    assert Layer("a", "Conv", True, 1000, 0, 10).seconds(EVEN, 1) == 1000 / 40  # int8 has its own roof


@pytest.mark.parametrize(
    ("name", "weights_mb"), [("food_classifier_onnx", (14.2, 15.0)), ("food_classifier_int8", (4.8, 5.6))]
)
def test_the_food_models_are_mobilenets(name: str, weights_mb: tuple[float, float]) -> None:
    """MobileNetV1 is published with 569 million multiply-adds at 224 pixels, two operations each."""
    result = count(DEFAULT_REPOSITORY / name / "1" / "model.onnx")
    convolutions = [layer for layer in result.layers if layer.op == "Conv"]
    assert len(convolutions) == 27
    assert 1138e6 < sum(layer.operations for layer in convolutions) < 1170e6
    assert weights_mb[0] < result.totals["weight_bytes"] / 1e6 < weights_mb[1]
    # In eight bits the first three convolutions stay in float.
    assert sum(layer.quantized for layer in convolutions) == (24 if name.endswith("int8") else 0)
    assert result.unknown == ()


def test_the_best_time_is_no_slower_than_the_one_from_main_memory() -> None:
    layers = count(DEFAULT_REPOSITORY / "food_classifier_onnx" / "1" / "model.onnx").layers
    result = Roofline(EVEN, 1, layers)
    assert 0 < result.computing_s < result.seconds, "values in a cache do not wait for memory"


def test_the_verb_prints_the_bounds_of_the_layers() -> None:
    output = said("roofline", "food_classifier_onnx", "--gpu", "t4", "--batch", "8")
    assert "food_classifier_onnx: 1147 million operations a row, 14.7 MB of weights, 41 MB" in output
    assert "T4: 8,100.0 G operations/s" in output
    assert "layers that are memory-bound take" in output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["soup"], "'soup' is neither an ONNX file nor a model of"),
        (["gone.onnx"], "no ONNX file found at gone.onnx"),
        (["translator"], "served by the backend 'python' and has no ONNX file"),
        (["food_classifier_onnx", "--gpu", "voodoo2"], "'voodoo2' is not one of 't4', 'a100'"),
        (["onnx-mnist-cpu", "--tflops", "21.7"], "give --tflops and --gb-per-s"),
    ],
)
def test_roofline_refuses_models_that_it_cannot_analyse(words: list[str], says: str) -> None:
    done = gourmet("roofline", *words)
    assert (done.exit_code in (1, 2), says in done.output) == (True, True), done.output


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (("_COPY_MB", 16), ("_EDGE", 256), ("_RUNS", 3)):
        monkeypatch.setattr(roofline, name, small)
    result = roofline.measured_machine()
    # A processor of the last fifteen years, at a time when others use it as well.
    assert 3e8 < result.fp32 < 1e13
    assert 3e8 < result.int8 < 1e14
    assert 1e8 < result.bandwidth < 1e12


def test_a_device_is_given_by_its_operations_and_its_bandwidth() -> None:
    output = said("roofline", "onnx-mnist-cpu", "--tflops", 21.7, "--gb-per-s", 608)
    assert "21,700.0 G operations/s in fp32, 21,700.0 in int8, 608.0 GB/s (as given" in output
