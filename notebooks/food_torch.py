"""food_first as the published lab serves it: torch, and weights from a .pth file. A model.py for exercise 7.

weights_only=True reads tensors. The published weights_only=False runs whatever code is in the file.
"""

import base64
import io
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps

from gourmet.systems.food11.network import Food11Network

MEAN, DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
BILINEAR = Image.Resampling.BILINEAR


class TritonPythonModel:
    def initialize(self, args):
        version = Path(__file__).parent
        on_gpu = args["model_instance_kind"] == "GPU" and torch.cuda.is_available()
        self.device = torch.device(f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu")
        self.network = Food11Network().eval().to(self.device)
        tensors = torch.load(version / "food11.pth", map_location=self.device, weights_only=True)
        self.network.load_state_dict(tensors)
        torch.set_num_threads(1)
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
        with torch.inference_mode():
            scores = self.network(torch.from_numpy(rows).to(self.device))
            probabilities = scores.softmax(dim=1).cpu().numpy()
        ends = np.cumsum([len(request) for request in photos])[:-1]
        return [self.answer(its_rows) for its_rows in np.split(probabilities, ends)]

    def answer(self, probabilities):
        outputs = {"FOOD_LABEL": self.labels[probabilities.argmax(axis=1)][:, None]}
        outputs |= {"PROBABILITY": probabilities.max(axis=1)[:, None], "PROBABILITIES": probabilities}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
