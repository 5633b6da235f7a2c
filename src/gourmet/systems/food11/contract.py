"""The food classifier's contract: labels, pixels in, probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gourmet.pictures.classifier import PictureClassifier

# Photos that anybody may try: <class id>_<dish>.jpg, with their CREDITS.
SAMPLES: Final = Path(__file__).with_name("samples")
SYSTEM: Final = PictureClassifier(
    name="food11",
    title="Food",
    # Only this variable selects the model that answers the page.
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
    sample_file=SAMPLES / "06_spaghetti.jpg",
    subject="food",
    metrics_prefix="food",
)
