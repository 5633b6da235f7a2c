"""An answer of `/api/v1/classify` to look at: a photo that is recognised and one that is none."""

from __future__ import annotations

from typing import Final

from app.api.shapes import Classified, Failed, Guess, ModelName, Problem, Results, Timings

_REQUEST: Final = "83b74372e721406a969e7c5c1b674fc7"

RESULTS: Final = Results(
    results=[
        Classified(
            filename="photo.jpg",
            label="Dessert",
            class_id=2,
            probability=0.383,
            sure=False,
            threshold=0.5,
            top=[
                Guess(label="Dessert", probability=0.383),
                Guess(label="Soup", probability=0.158),
                Guess(label="Dairy product", probability=0.131),
                Guess(label="Fried food", probability=0.103),
                Guess(label="Seafood", probability=0.086),
            ],
            model=ModelName(name="food_classifier_onnx", version="1"),
            bytes_sent=602_112,
            timings_ms=Timings(receive=1.3, wait=0.2, decode=3.1, preprocess=0.6, triton=11.4, total=18.9),
            request_id=_REQUEST,
        ),
        Failed(
            filename="other.jpg",
            error=Problem(
                code="broken_picture",
                message="this JPEG cannot be decoded: image file is truncated",
                request_id=_REQUEST,
            ),
        ),
    ]
)
