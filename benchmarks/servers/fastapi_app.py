"""FastAPI and ONNX Runtime, as serving labs write it: the handler decodes and classifies by itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, UploadFile
from plain import PlainClassifier

app = FastAPI()
classifier = PlainClassifier()


@app.post("/predict")
def predict(file: UploadFile) -> dict[str, Any]:
    # A plain function, which FastAPI runs in its thread pool.
    return classifier.classify(file.file.read())
