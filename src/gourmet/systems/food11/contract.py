"""What everybody who touches the food classifier agrees on: labels, pixels in, probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gourmet.pictures.classifier import PictureClassifier

SYSTEM: Final = PictureClassifier(
    name="food11",
    title="Food",
    # Which served model answers the page: this variable decides, and nothing else.
    model_variable="FOOD11_MODEL_NAME",
    default_model="food_classifier",
    labels=(
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
    ),
    # A small JPEG of fried eggs, drawn by scripts/draw_food_sample.py.
    sample_file=Path(__file__).with_name("sample.jpg"),
    metrics_prefix="food",
)
