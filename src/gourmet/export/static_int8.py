"""Quantize networks of pictures to eight bits, with uint8 pixels as input.

Normalisation is folded into the first convolution, so that the pixels are its quantized input as
they are: (p / 255 - mean) / std is linear in p, its factor goes into the weights and its offset into
the bias. Only at the border would that be wrong, where the convolution pads with zero for the
mean colour; pixels are therefore counted from `grey`, which is near all three channels' means.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from torch import nn

_WARNINGS, _ERRORS = 2, 3  # onnxruntime's levels; warnings are its default
# The name of the float graph's input.
PIXELS: Final = "pixels"


def grey(mean: Sequence[float]) -> int:
    return round(255 * sum(mean) / 3)


def take_pixels(first: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
    """Have the first convolution take pixels less their `grey`."""
    assert isinstance(first, nn.Conv2d)
    assert first.bias is not None
    means, stds = torch.tensor(mean), torch.tensor(std)
    with torch.no_grad():
        first.bias += first.weight.sum(dim=(2, 3)) @ ((grey(mean) / 255.0 - means) / stds)
        first.weight /= 255.0 * stds.view(1, 3, 1, 1)


class _CalibrationPhotos(CalibrationDataReader):  # type: ignore[misc]
    """Yields photos one at a time, as onnxruntime's calibrator reads them.

    Black and white corners make the pixels' range whole: their scale is then 1 and their zero the grey,
    as the pixels that take their place need it.
    """

    def __init__(self, photos: npt.NDArray[np.uint8], middle: int) -> None:
        photos = photos.copy()
        photos[:, 0, 0], photos[:, -1, -1] = 0, 255
        planes = np.moveaxis(photos, -1, 1)[:, np.newaxis]
        self._rows = ({PIXELS: row.astype(np.float32) - middle} for row in planes)

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        return next(self._rows, None)


def quantize(
    path: Path,
    photos: npt.NDArray[np.uint8],
    *,
    mean: Sequence[float],
    operators: Sequence[str],
    excluded: Sequence[str] = (),
    name: str,
) -> None:
    """Quantize the graph at `path`, which takes float `PIXELS` less grey, in place: int8 weights per channel,
    uint8 activations, ranges from `photos`. What it takes is then `name`, uint8 [N, rows, columns, 3].
    """
    # onnxruntime advises on the root logger, and warns of what its quantizer leaves over.
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)
    onnxruntime.set_default_logger_severity(_ERRORS)
    quantize_static(
        path,
        path,
        _CalibrationPhotos(photos, grey(mean)),
        op_types_to_quantize=list(operators),
        nodes_to_exclude=list(excluded),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ForceQuantizeNoInputCheck": True},  # the pixels are resized before any weight
    )
    onnxruntime.set_default_logger_severity(_WARNINGS)
    logging.getLogger().setLevel(level)
    model = _with_pixels_in(onnx.load(path), name, photos.shape[1], grey(mean))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _with_pixels_in(model: onnx.ModelProto, name: str, side: int, middle: int) -> onnx.ModelProto:
    """Replace the float input by the uint8 pixels themselves, and its quantization where there is one."""
    graph = model.graph
    first = next(node for node in graph.node if PIXELS in node.input)
    if first.op_type == "QuantizeLinear":
        dequantize = next(node for node in graph.node if first.output[0] in node.input)
        graph.node.remove(first)
        dequantize.input[0] = "planes"
    else:  # the first layer is in float
        graph.initializer.append(onnx.helper.make_tensor("middle", onnx.TensorProto.FLOAT, [], [middle]))
        graph.node.insert(0, onnx.helper.make_node("Sub", ["floats", "middle"], [PIXELS], "less grey"))
        to_float = onnx.helper.make_node("Cast", ["planes"], ["floats"], "floats", to=onnx.TensorProto.FLOAT)
        graph.node.insert(0, to_float)
    graph.node.insert(0, onnx.helper.make_node("Transpose", [name], ["planes"], "planes", perm=[0, 3, 1, 2]))
    shape = ["batch", side, side, 3]
    graph.input.pop()
    graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape))
    used = {name for node in graph.node for name in node.input}
    # onnxruntime would warn of those that are left over whenever it loads the model.
    for tensor in [*graph.initializer]:
        if tensor.name not in used:
            graph.initializer.remove(tensor)
    for node in [*graph.node]:
        if node.op_type == "Constant" and node.output[0] not in used:
            graph.node.remove(node)
    return model
