"""A food model that looks at a pixel a class, and has the fault that its config names."""

import json
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self._fault = config["parameters"]["fault"]["string_value"]
        self._held, self._rows = pathlib.Path(args["model_repository"], "held"), 0
        self._classes = config["output"][0]["dims"][-1]

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
        if self._fault == "refuses" and image[0, 0, 0, 0] % 4 == 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one, thank you"))
        self._rows += len(image)
        while self._fault == "holds" and self._rows > 33 and self._held.exists():
            time.sleep(0.05)
        pixels = image.reshape(len(image), -1)[:, ::13685][:, : self._classes].astype(np.float32)
        scores = np.exp(pixels / 40)
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        if self._fault == "drops" and len(probabilities) > 1:
            probabilities = probabilities[:-1]
        if self._fault == "swaps":
            probabilities = np.ascontiguousarray(probabilities[::-1])
        return pb_utils.InferenceResponse([pb_utils.Tensor("probabilities", probabilities)])
