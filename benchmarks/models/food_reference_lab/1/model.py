"""The baseline: a food classifier the way a serving lab writes its first model.py.

Written from a description of such labs and kept slow on purpose: the eager network, each request
decoded and classified on its own, one row a request, torch's own choice of threads. Its weights and
its crop are those of food_classifier, so that the two must give the same answers.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from PIL import Image
from torch.nn.functional import softmax

from gourmet.systems.food11 import contract
from gourmet.systems.food11.network import load
from gourmet.training.files import torchvision


class TritonPythonModel:
    def initialize(self, args):
        # `make bench` puts the weights of food_classifier beside this file.
        self.network, _ = load(Path(__file__).with_name("model.onnx"))
        transforms = torchvision().transforms
        self.transform = transforms.Compose(
            [
                transforms.Resize(contract.SYSTEM.input_size),
                transforms.CenterCrop(contract.SYSTEM.input_size),
                transforms.ToTensor(),
                transforms.Normalize(contract.SYSTEM.mean, contract.SYSTEM.std),
            ]
        )

    def execute(self, requests):
        responses = []
        for request in requests:
            blob = pb_utils.get_input_tensor_by_name(request, "INPUT_IMAGE").as_numpy()[0, 0]
            if not blob.startswith(b"\xff\xd8"):
                blob = base64.b64decode(blob)
            image = self.transform(Image.open(io.BytesIO(blob)).convert("RGB"))
            with torch.no_grad():
                probabilities = softmax(self.network(image.unsqueeze(0)), dim=1)[0]
            probability, best = probabilities.max(dim=0)
            label = np.array([[contract.SYSTEM.labels[int(best)].encode()]], np.object_)
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("FOOD_LABEL", label),
                        pb_utils.Tensor("PROBABILITY", probability.reshape(1, 1).numpy()),
                    ]
                )
            )
        return responses
