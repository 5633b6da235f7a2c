"""Photos in, food out: the model.py that one writes first. food_classifier is the careful one."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps

MEAN, DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
BILINEAR = Image.Resampling.BILINEAR


class TritonPythonModel:
    def initialize(self, args):
        config, version = json.loads(args["model_config"]), Path(__file__).parent
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["intra_op_thread_count"]["string_value"])
        providers = ["CUDAExecutionProvider"] if args["model_instance_kind"] == "GPU" else []
        providers = [*providers, "CPUExecutionProvider"]
        self.network = onnxruntime.InferenceSession(version / "model.onnx", options, providers)
        self.labels = np.array((version.parent / "labels.txt").read_text().splitlines(), dtype=object)

    def preprocess(self, photo):
        photo = photo if photo.startswith(b"\xff\xd8") else base64.b64decode(photo)
        image = ImageOps.fit(Image.open(io.BytesIO(photo)).convert("RGB"), (224, 224), BILINEAR)
        return ((np.asarray(image, np.float32) / 255 - MEAN) / DEVIATION).transpose(2, 0, 1)

    def execute(self, requests):
        photos = [
            pb_utils.get_input_tensor_by_name(request, "INPUT_IMAGE").as_numpy() for request in requests
        ]
        rows = np.stack([self.preprocess(photo) for request in photos for photo in request[:, 0]])
        scores = np.exp(self.network.run(None, {"input": rows})[0])  # all requests in one run
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        ends = np.cumsum([len(request) for request in photos])[:-1]
        return [self.answer(its_rows) for its_rows in np.split(probabilities, ends)]  # one response a request

    def answer(self, probabilities):
        outputs = {"FOOD_LABEL": self.labels[probabilities.argmax(axis=1)][:, None]}
        outputs |= {"PROBABILITY": probabilities.max(axis=1)[:, None], "PROBABILITIES": probabilities}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
