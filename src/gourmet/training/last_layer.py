"""The last layer of a network that torch holds, apart from the network."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from gourmet.training.linear_layer import Floats, Layer


class LastLayer:
    """The last layer of a network: activations [N, …] -> a score for each class."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]

    @property
    def layer(self) -> Layer:
        """Return the last layer's numbers, apart from the network."""
        return Layer(self.last.weight.detach().numpy().copy(), self.last.bias.detach().numpy().copy())

    @torch.no_grad()
    def take(self, layer: Layer) -> None:
        """Put the numbers of `layer` into the network."""
        self.last.weight.copy_(torch.from_numpy(layer.weight))
        self.last.bias.copy_(torch.from_numpy(layer.bias))

    @torch.no_grad()
    def activations(self, images: torch.Tensor) -> Floats:
        """Return the last layer's inputs for pictures as they are served."""
        rows: list[Floats] = []
        hook = self.last.register_forward_pre_hook(lambda _layer, inputs: rows.append(inputs[0].numpy()))
        try:
            self._network(images)
        finally:
            hook.remove()
        return rows[0]

    @property
    def before_it(self) -> str:
        """Return a digest of all weights before the last layer."""
        digest, own = hashlib.sha256(), {id(parameter) for parameter in self.last.parameters()}
        for name, tensor in self._network.named_parameters():
            if id(tensor) not in own:
                digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
