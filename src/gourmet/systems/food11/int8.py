"""The food network in eight bits: pixels in, probabilities out (gourmet.export.static_int8)."""

from __future__ import annotations

import copy
import tempfile
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import onnx
import onnxruntime
import torch
from torch import nn

from gourmet.errors import UsageError
from gourmet.evaluation import same_answers
from gourmet.export import static_int8
from gourmet.export.picture_export import OPSET, Source, open_onnx, write_onnx
from gourmet.repository.gate import ModelFile, Target
from gourmet.systems.food11 import contract
from gourmet.systems.food11.network import Food11Network


class PixelNetwork(nn.Module):
    """float [N, 3, 224, 224], pixels less grey -> probabilities [N, 11] that sum to that of food; dishes."""

    def __init__(self, network: Food11Network, temperature: float) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.temperature = temperature
        static_int8.take_pixels(self.network.features[0], contract.SYSTEM.mean, contract.SYSTEM.std)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, dishes = self.network.with_dishes(pixels)
        food = torch.sigmoid(torch.logsumexp(logits, dim=1, keepdim=True))
        return food * torch.softmax(logits / self.temperature, dim=1), dishes


_opened: Final = partial(open_onnx, name="image", output="probabilities")


def target(source: Source) -> Target:
    """Return the target of the int8 model of these weights; ONNX Runtime runs it on pixels."""
    file = int8_file(source, "model.onnx")
    candidate = source.candidate
    compare = candidate.comparing(file.name, _opened, are_probabilities=True) if candidate else None
    return Target("food_classifier_int8", [file], compare=compare)


def int8_file(source: Source, name: str) -> ModelFile:
    compare = partial(
        same_answers.close_answers, source.eager, photos=source.held_out, classes=source.held_out_classes
    )
    return ModelFile(name, partial(write_int8, source), same_answers.verify(_opened, compare))


def write_int8(source: Source, path: Path) -> dict[str, Any]:
    """Quantize statically: int8 weights per channel, uint8 activations, ranges from real photos."""
    path.write_bytes(_quantized(source))
    return {
        "form": "ONNX, int8 QDQ, per channel",
        "opset": OPSET,
        "input": "uint8 [N, 224, 224, 3]",
        "calibrated_on": f"{len(source.to_calibrate)} photos of the training part",
    }


@lru_cache(maxsize=1)  # two of the served models have the file
def _quantized(source: Source) -> bytes:
    if not isinstance(source.network, Food11Network):
        raise UsageError(
            "int8 is made of networks that `gourmet train food11` trained: deploy others as onnx"
        )
    network = PixelNetwork(source.network, source.calibration.temperature).eval()
    example = torch.randn(2, 3, contract.SYSTEM.input_size, contract.SYSTEM.input_size)
    with tempfile.TemporaryDirectory(prefix="gourmet-int8-") as folder:
        path = Path(folder) / "model.onnx"
        for is_corrected in (False, True):
            if is_corrected:
                _correct(network.network, source, path)
            write_onnx(network, example, path, static_int8.PIXELS, "probabilities", contract.ALL_DISHES)
            static_int8.quantize(
                path,
                source.to_calibrate,
                mean=contract.SYSTEM.mean,
                operators=["Conv", "Clip"],
                excluded=_in_float(onnx.load(path)),
                name="image",
            )
        return path.read_bytes()


def _correct(network: Food11Network, source: Source, path: Path) -> None:
    """Correct the layers after the features for the shift of their means by the eight bits of `path`.

    Measured: 0.5 points of balanced accuracy lost, 0.75 without it.
    """
    model = onnx.load(path)
    mean = next(node.output[0] for node in model.graph.node if node.op_type == "ReduceMean")
    model.graph.output.append(onnx.helper.make_tensor_value_info(mean, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert isinstance(source.network, Food11Network)
    moved = torch.zeros(network.dishes.in_features)
    with torch.no_grad():
        for photo in source.to_calibrate:
            rounded = torch.from_numpy(session.run([mean], {"image": photo[None]})[0][0])
            rows = torch.from_numpy(contract.SYSTEM.normalise(photo[None]))
            moved += rounded - source.network.features(rows).mean((2, 3))[0]
        moved /= len(source.to_calibrate)
        network.dishes.bias.sub_(network.dishes.weight @ moved)
        network.last.bias.sub_(network.last.weight[:, -len(moved) :] @ moved)


def _in_float(model: onnx.ModelProto) -> list[str]:
    """Return the nodes that are too inaccurate in eight bits.

    Channels of the first depthwise convolution differ most in range: with the first three convolutions in
    eight bits, 64-pixel photos lose eight points, and no time is won. Behind the last feature map, the
    likelihoods of hundreds of dishes are computed.
    """
    nodes = list(model.graph.node)
    convolutions = [index for index, node in enumerate(nodes) if node.op_type == "Conv"]
    mean = next(index for index, node in enumerate(nodes) if node.op_type == "ReduceMean")
    return [node.name for node in [*nodes[: convolutions[3]], *nodes[mean:]]]
