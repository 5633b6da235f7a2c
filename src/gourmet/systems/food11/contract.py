"""The food classifier's contract: labels, dishes, pixels in, probabilities out."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from gourmet.contracts import Tensors
from gourmet.pictures.certainty import Named
from gourmet.pictures.classifier import PictureClassifier

# Photos that anybody may try: <class id>_<dish>.jpg, with their CREDITS.
SAMPLES: Final = Path(__file__).with_name("samples")
DISHES_FILE: Final = Path(__file__).with_name("dishes.csv")
# Outputs of food_classifier: the names and probabilities of the best dishes.
DISHES: Final = "DISHES"
DISH_PROBABILITIES: Final = "DISH_PROBABILITIES"
# The output of the ONNX models: the probability of each dish, in the order of dishes.csv.
ALL_DISHES: Final = "dishes"
BEST: Final = 3


@dataclass(frozen=True)
class Dish:
    """A dish that the network recognises."""

    output: int  # its number in food_V1
    name: str  # empty if nobody knows it; such a dish is never named
    label: str  # the class that it belongs to; empty for dishes of several classes
    also: tuple[str, ...]  # other names


@dataclass(frozen=True)
class FoodClassifier(PictureClassifier):
    """A classifier that also names the dish."""

    @cached_property
    def dishes(self) -> tuple[Dish, ...]:
        with DISHES_FILE.open(encoding="utf-8", newline="") as file:
            return tuple(
                Dish(
                    int(row["output"]), row["dish"], row["class"], tuple(filter(None, row["also"].split("|")))
                )
                for row in csv.DictReader(file)
            )

    def finer(self, outputs: Tensors, rows: int = 1) -> list[list[Named]]:
        """Return the best dishes of each row, best first; none from a model that knows no dishes."""
        if DISHES in outputs and DISH_PROBABILITIES in outputs:
            names, probabilities = (outputs[name].reshape(rows, -1) for name in (DISHES, DISH_PROBABILITIES))
            return [
                [
                    (name, likely)
                    for name, likely in zip(map(_text, named), of_row.tolist(), strict=True)
                    if name
                ]
                for named, of_row in zip(names, probabilities, strict=True)
            ]
        if ALL_DISHES in outputs:
            return self.best_dishes(outputs[ALL_DISHES].reshape(rows, len(self.dishes)))
        return super().finer(outputs, rows)

    def finer_name_of(self, folder: str) -> str:
        """Return the dish that a folder is called after, such as pad_thai; empty if no dish is."""
        return self._by_letters.get(_letters(folder), "")

    @cached_property
    def _by_letters(self) -> dict[str, str]:
        names = ((name, dish.name) for dish in self.dishes if dish.name for name in (*dish.also, dish.name))
        return {_letters(name): dish for name, dish in names}

    def best_dishes(
        self, probabilities: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    ) -> list[list[Named]]:
        """Return the best dishes of each row of `probabilities` [rows, dishes]; none for a row of zeros."""
        named = np.array([bool(dish.name) for dish in self.dishes])
        rows = np.where(named, probabilities, 0.0)
        best = np.argsort(-rows, axis=1, kind="stable")[:, :BEST]
        return [
            [(self.dishes[index].name, float(row[index])) for index in indices if row[index] > 0.0]
            for row, indices in zip(rows, best, strict=True)
        ]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


SYSTEM: Final = FoodClassifier(
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
    # Measured on photos whose folder names a dish, a quarter of them of dishes that it does not know: see
    # MODEL_CARD.md. From `likely` on the best dish is right for 92 of 100.
    likely=0.6,
    perhaps=0.5,
    metrics_prefix="food",
)
