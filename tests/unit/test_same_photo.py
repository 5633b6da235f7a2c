"""One photo in several formats and sizes has one answer."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import pillow_heif
import pytest
from PIL import Image

from gourmet.evaluation.labelled_pictures import ALL
from gourmet.pictures.certainty import RankedLabels
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served.manifest import MANIFEST
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA

SERVED: Final = DEFAULT_REPOSITORY / "food_classifier_int8" / "1"
COUNT: Final = 60
MIN_SAME: Final = 0.95


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


def heic(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, quality=85)
    return buffer.getvalue()


def resized(image: Image.Image, scale: float) -> Image.Image:
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


FORMS: Final[dict[str, Callable[[Image.Image], bytes]]] = {
    "JPEG": lambda image: saved(image, "JPEG", quality=90),
    "WebP": lambda image: saved(image, "WEBP", quality=85),
    "AVIF": lambda image: saved(image, "AVIF", quality=80),
    "HEIC": heic,
    "three times as large, JPEG": lambda image: saved(resized(image, 3), "JPEG", quality=85),
}


@pytest.mark.nightly
def test_photos_have_the_same_class_and_verdict_in_five_forms(food_photos: Path) -> None:
    session = onnxruntime.InferenceSession(SERVED / "model.onnx")
    chosen = json.loads((SERVED / MANIFEST).read_text())["calibration"]

    def verdict(data: bytes) -> str:
        (row,) = session.run(None, {"image": SYSTEM.pixels(data)[None]})[0]
        probabilities = tuple(map(float, row / row.sum()))
        relevance = float(row.sum())
        answer = RankedLabels(
            SYSTEM, SYSTEM.labels, probabilities, chosen["threshold"], relevance, chosen["subject_threshold"]
        )
        return answer.label if answer.relevant else "not food"

    photos = DATA.listing(food_photos / "sharp_train.zip", ALL)
    photos = photos[:: len(photos) // COUNT][:COUNT]
    same = []
    for data in DATA.read(photos):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        same.append([verdict(form(image)) == verdict(saved(image, "PNG")) for form in FORMS.values()])
    shares = dict(zip(FORMS, np.mean(same, axis=0).round(3), strict=True))
    assert min(shares.values()) >= MIN_SAME, shares
