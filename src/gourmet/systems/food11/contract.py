"""What everybody who touches the food classifier agrees on: labels, pixels in, probabilities out.

numpy and Pillow only. The web app, the served models, the trainer and the checks import this
module; none of them repeats a line of it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.systems import scores
from gourmet.systems.pictures import (
    PictureError,
    PictureInfo,
    Pixels,
    from_base64,
    identify,
    square_pixels,
)
from gourmet.systems.scores import Floats, softmax

__all__ = [
    "DATATYPES",
    "DEFAULT_MODEL",
    "INPUT_SIZE",
    "LABELS",
    "MEAN",
    "MODEL_ENV",
    "NAME",
    "STD",
    "Floats",
    "PictureError",
    "PictureInfo",
    "arrange",
    "encode",
    "from_base64",
    "identify",
    "normalise",
    "pixels",
    "probabilities",
    "sample",
    "softmax",
]

NAME: Final = "food11"
# Which served model answers the page: this variable decides, and nothing else.
MODEL_ENV: Final = "FOOD11_MODEL_NAME"
DEFAULT_MODEL: Final = "food_classifier"

LABELS: Final = (
    "Bread",
    "Dairy product",
    "Dessert",
    "Egg",
    "Fried food",
    "Meat",
    "Noodles/Pasta",
    "Rice",
    "Seafood",
    "Soup",
    "Vegetable/Fruit",
)

INPUT_SIZE: Final = 224
# What the input of a food model may be: a picture as bytes, pixels, or the normalised tensor.
DATATYPES: Final = ("BYTES", "UINT8", "FP32")
# The channel statistics of ImageNet, which clients of `food_classifier_onnx` apply themselves.
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)

# normalise(x) = (x / 255 - mean) / std, as one multiplication and one addition per value.
_SCALE: Final = (1.0 / (255.0 * np.array(STD, ndmin=3).T)).astype(np.float32)
_SHIFT: Final = (-np.array(MEAN, ndmin=3).T / np.array(STD, ndmin=3).T).astype(np.float32)


def pixels(data: bytes) -> Pixels:
    """The bytes of a picture as uint8 [224, 224, 3]; raises PictureError."""
    return square_pixels(data, INPUT_SIZE)


def normalise(image: Pixels) -> Floats:
    """uint8 [..., 224, 224, 3] as the network's float32 [..., 3, 224, 224], contiguous."""
    # One pass from the bytes to their places: twelve times as fast as scaling first and moving after.
    planes = np.moveaxis(image, -1, -3)
    out = np.empty(planes.shape, np.float32)
    np.multiply(planes, _SCALE, out=out)
    out += _SHIFT
    return out


def encode(data: bytes, datatype: str) -> npt.NDArray[Any]:
    """A picture as the one-row input tensor that a model with an input of `datatype` takes.

    BYTES: the picture as it is; UINT8: pixels; FP32: the normalised tensor.
    """
    if datatype == "BYTES":
        return np.array([[data]], dtype=np.object_)
    return arrange(pixels(data), datatype)


def arrange(image: Pixels, datatype: str) -> npt.NDArray[Any]:
    """Decoded `pixels` as the one-row input tensor that a model with an input of `datatype` takes.

    BYTES: as a BMP, which is made and read at once and keeps every pixel as it is.
    """
    if datatype == "BYTES":
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "BMP")
        return np.array([[buffer.getvalue()]], dtype=np.object_)
    if datatype == "UINT8":
        return image[np.newaxis]
    if datatype == "FP32":
        return normalise(image)[np.newaxis]
    raise ValueError(
        f"an input of type {datatype} is none of {', '.join(DATATYPES)}, which food11 models take"
    )


def probabilities(outputs: Mapping[str, npt.NDArray[Any]], temperature: float = 1.0) -> Floats:
    """The [rows, 11] probabilities in a served model's `outputs`, whichever of the models it is.

    Models that answer with probabilities have applied the temperature themselves; `output` is the
    ONNX model's logits, where it is the client's to apply.
    """
    ready = ("PROBABILITIES", "probabilities")
    return scores.read(outputs, NAME, LABELS, temperature, logits=("output",), ready=ready)


def sample() -> bytes:
    """A small JPEG of fried eggs, drawn by draw_sample.py: what a served model is asked first."""
    return Path(__file__).with_name("sample.jpg").read_bytes()
