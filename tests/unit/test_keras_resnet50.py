"""scripts/keras_resnet50.py: Keras' weights in their network, and pictures as it takes them."""

from __future__ import annotations

import keras_resnet50
import numpy as np
import torch

from gourmet.tasks.classification import nvidia_networks as networks


def theirs(seed: int = 0) -> keras_resnet50.Arrays:
    """Noise under Keras' names, in the shapes of the network."""
    random = np.random.default_rng(seed)
    state = networks.build("resnet50-v1", 1000, seed).module.state_dict()
    arrays: keras_resnet50.Arrays = {}
    layers = ["conv1"] + [
        f"res{stage}{letter}_{branch}"
        for stage, blocks in ((2, "abc"), (3, "abcd"), (4, "abcdef"), (5, "abc"))
        for letter in blocks
        for branch in ("branch2a", "branch2b", "branch2c", *(["branch1"] if letter == "a" else []))
    ]
    for layer in layers:
        outputs, inputs, height, width = state[f"{keras_resnet50.names(layer)[0]}.weight"].shape
        shape = (height, width, inputs, outputs)
        arrays[f"{layer}/kernel"] = random.standard_normal(shape, np.float32)
        arrays[f"{layer}/bias"] = random.standard_normal(outputs, np.float32)
        norm = "bn_conv1" if layer == "conv1" else f"bn{layer.removeprefix('res')}"
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            arrays[f"{norm}/{name}"] = random.random(outputs, np.float32)
    arrays["fc1000/kernel"] = random.standard_normal((2048, 1000), np.float32)
    arrays["fc1000/bias"] = random.standard_normal(1000, np.float32)
    return arrays


def test_every_weight_has_its_place() -> None:
    network = networks.build("resnet50-v1", 1000, 0).module
    mine = {name: torch.from_numpy(array) for name, array in keras_resnet50.converted(theirs())}
    wanted = {
        name: tensor.shape for name, tensor in network.state_dict().items() if "num_batches" not in name
    }
    assert {name: tensor.shape for name, tensor in mine.items()} == wanted


def test_a_block_that_halves_does_so_first() -> None:
    first, later = (networks.build(config, 10, 0).module for config in ("resnet50-v1", "resnet50"))
    strides = [
        [network.get_submodule(f"layer3.0.{name}").stride for name in ("conv1", "conv2")]
        for network in (first, later)
    ]
    assert strides == [[(2, 2), (1, 1)], [(1, 1), (2, 2)]]


def test_labels_are_in_the_order_of_the_outputs_and_each_once() -> None:
    named = {"1": "crane", "0": "hen", "2": "crane", "10": "tench"} | {str(n): f"{n}" for n in range(3, 10)}
    said = keras_resnet50.labels(named)
    assert said[:3] == ["hen", "crane 1", "crane 2"]
    assert said[10] == "tench"
