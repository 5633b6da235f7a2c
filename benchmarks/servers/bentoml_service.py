"""BentoML: `bentoml serve bentoml_service:FoodService`, WORKERS processes that each answer requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import bentoml
from plain import PlainClassifier


@bentoml.service(workers=int(os.environ["WORKERS"]))
class FoodService:
    def __init__(self) -> None:
        self.classifier = PlainClassifier()

    @bentoml.api
    def predict(self, file: Path) -> dict[str, Any]:
        return self.classifier.classify(file.read_bytes())
