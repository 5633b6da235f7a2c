"""The food network in eight bits: pixels in, probabilities out, hardly a float in between.

Normalisation is folded into the first convolution, so that the pixels are its quantized input as
they are: (p / 255 - mean) / std is linear in p, its factor goes into the weights and its offset into
the bias. Only at the border would that be wrong, where the convolution pads with zero for the
mean colour; pixels are therefore counted from `_GREY`, which is near all three channels' means.
"""

from __future__ import annotations

import copy
import logging
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from torch import nn

from gourmet.deploying.target import Target
from gourmet.errors import UsageError
from gourmet.systems.food11 import contract
from gourmet.systems.food11.network import Food11Network
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.export import Source
from gourmet.tasks.classification.formats import OPSET, open_onnx, write_onnx
from gourmet.tasks.classification.gate import Pixels

_WARNINGS, _ERRORS = 2, 3  # onnxruntime's levels; warnings are its default
_GREY: Final = round(255 * sum(contract.SYSTEM.mean) / 3)


class PixelNetwork(nn.Module):
    """float [N, 3, 224, 224], pixels less `_GREY` -> probabilities [N, 11] that sum to that of being food."""

    def __init__(self, network: Food11Network, temperature: float) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.temperature = temperature
        _take_pixels(self.network.features[0])

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits = self.network(pixels)
        food = torch.sigmoid(torch.logsumexp(logits, dim=1, keepdim=True))
        return food * torch.softmax(logits / self.temperature, dim=1)


def _take_pixels(first: nn.Module) -> None:
    """Have the first convolution take pixels less `_GREY`."""
    assert isinstance(first, nn.Conv2d)
    assert first.bias is not None
    mean, std = torch.tensor(contract.SYSTEM.mean), torch.tensor(contract.SYSTEM.std)
    with torch.no_grad():
        first.bias += first.weight.sum(dim=(2, 3)) @ ((_GREY / 255.0 - mean) / std)
        first.weight /= 255.0 * std.view(1, 3, 1, 1)


class _Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Photos one at a time, as onnxruntime's calibrator asks for them.

    Black and white corners make the pixels' range whole: their scale is then 1 and their zero _GREY,
    as the pixels that take their place need it.
    """

    def __init__(self, photos: Pixels) -> None:
        photos = photos.copy()
        photos[:, 0, 0], photos[:, -1, -1] = 0, 255
        planes = np.moveaxis(photos, -1, 1)[:, np.newaxis]
        self._rows = ({"pixels": row.astype(np.float32) - _GREY} for row in planes)

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        return next(self._rows, None)


def target(source: Source) -> Target:
    """The int8 model of these weights; opened by ONNX Runtime, asked with pixels."""
    opened = partial(open_onnx, name="image", output="probabilities")
    compare = partial(
        gate.close_answers, source.eager, photos=source.held_out, classes=source.held_out_classes
    )
    return Target("food_classifier_int8", "model.onnx", partial(build, source), gate.verify(opened, compare))


def build(source: Source, path: Path) -> dict[str, Any]:
    """Quantize statically: int8 weights per channel, uint8 activations, ranges from real photos."""
    if not isinstance(source.network, Food11Network):
        raise UsageError(
            "int8 is made of networks that `gourmet train food11` trained: deploy others as onnx"
        )
    network = PixelNetwork(source.network, source.calibration.temperature).eval()
    example = torch.randn(2, 3, contract.SYSTEM.input_size, contract.SYSTEM.input_size)
    write_onnx(network, example, path, "pixels", "probabilities")
    # onnxruntime advises on the root logger, and warns of what its quantizer leaves over.
    logging.getLogger().setLevel(logging.ERROR)
    onnxruntime.set_default_logger_severity(_ERRORS)
    quantize_static(
        path,
        path,
        _Calibration(source.to_calibrate),
        op_types_to_quantize=["Resize", "Conv", "Clip", "GlobalAveragePool", "ReduceMean", "Gemm"],
        nodes_to_exclude=_tail(onnx.load(path)),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ForceQuantizeNoInputCheck": True},  # the pixels are made smaller before any weight
    )
    onnxruntime.set_default_logger_severity(_WARNINGS)
    model = _with_pixels_in(onnx.load(path))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return {
        "form": "ONNX, int8 QDQ, per channel",
        "opset": OPSET,
        "input": "uint8 [N, 224, 224, 3]",
        "calibrated_on": f"{len(source.to_calibrate)} photos of the training part",
    }


def _tail(model: onnx.ModelProto) -> list[str]:
    """The nodes behind the classifier: sums of exponentials do not survive eight bits."""
    names = [node.name for node in model.graph.node]
    last = max(i for i, node in enumerate(model.graph.node) if node.op_type == "Gemm")
    return names[last + 1 :]


def _with_pixels_in(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the quantization of the float input by the uint8 pixels themselves."""
    graph = model.graph
    quantize = next(node for node in graph.node if "pixels" in node.input)
    dequantize = next(node for node in graph.node if quantize.output[0] in node.input)
    graph.node.remove(quantize)
    dequantize.input[0] = "planes"
    graph.node.insert(
        0, onnx.helper.make_node("Transpose", ["image"], ["planes"], "planes", perm=[0, 3, 1, 2])
    )
    shape = ["batch", contract.SYSTEM.input_size, contract.SYSTEM.input_size, 3]
    graph.input.pop()
    graph.input.append(onnx.helper.make_tensor_value_info("image", onnx.TensorProto.UINT8, shape))
    used = {name for node in graph.node for name in node.input}
    # onnxruntime would warn of each that is left over whenever it loads the model.
    for tensor in [each for each in graph.initializer if each.name not in used]:
        graph.initializer.remove(tensor)
    for node in [each for each in graph.node if each.op_type == "Constant" and each.output[0] not in used]:
        graph.node.remove(node)
    return model
