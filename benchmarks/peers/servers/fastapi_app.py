"""FastAPI and ONNX Runtime, as serving labs write it: the handler decodes and classifies by itself.

POST /predict           a plain function, which FastAPI runs in its thread pool
POST /predict-in-loop   a coroutine, which keeps the event loop from everything else meanwhile
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, UploadFile
from plain import PlainClassifier

app = FastAPI()
classifier = PlainClassifier()


@app.post("/predict")
def predict(file: UploadFile) -> dict[str, Any]:
    return classifier.classify(file.file.read())


@app.post("/predict-in-loop")
async def predict_in_loop(file: UploadFile) -> dict[str, Any]:
    return classifier.classify(await file.read())
