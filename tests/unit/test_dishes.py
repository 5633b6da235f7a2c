"""Which dish an answer names, and when."""

from __future__ import annotations

import numpy as np
import pytest

from gourmet.pictures.certainty import Named, RankedLabels
from gourmet.systems.food11.contract import ALL_DISHES, DISH_PROBABILITIES, DISHES, SYSTEM

SAMOSA: tuple[Named, ...] = (("Samosa", 0.61), ("Pakora", 0.2), ("Empanada", 0.05))
SPLIT: tuple[Named, ...] = (("Goulash", 0.3), ("Chili con carne", 0.21), ("Ragout", 0.1))


@pytest.mark.parametrize(
    ("finer", "relevance", "name", "candidates"),
    [
        (SAMOSA, 1.0, "Samosa", []),
        ((("Samosa", 0.59), ("Pakora", 0.0)), 1.0, "", ["Samosa", "Pakora"]),
        (SPLIT, 1.0, "", ["Goulash", "Chili con carne"]),
        ((("Goulash", 0.3), ("Ragout", 0.19)), 1.0, "", []),
        (SAMOSA, 0.4, "", []),  # declined as no food
        (SAMOSA, 0.8, "", ["Samosa", "Pakora"]),  # perhaps no food
        ((), 1.0, "", []),
    ],
)
def test_a_dish_is_named_if_it_is_likely_and_two_if_one_of_them_is(
    finer: tuple[Named, ...], relevance: float, name: str, candidates: list[str]
) -> None:
    probabilities = (0.0,) * 4 + (1.0,) + (0.0,) * 6
    answer = RankedLabels(SYSTEM, SYSTEM.labels, probabilities, 0.85, relevance, 0.5, finer)
    assert (answer.finer_name, answer.finer_candidates) == (name, candidates)


def test_all_forms_of_the_model_name_the_same_dishes() -> None:
    names = [dish.name for dish in SYSTEM.dishes]
    rows = np.zeros((2, len(names)), np.float32)
    rows[0, names.index("Samosa")], rows[0, names.index("Pakora")] = 0.7, 0.2
    (named, nothing) = SYSTEM.finer({ALL_DISHES: rows}, 2)
    assert named == [("Samosa", pytest.approx(0.7)), ("Pakora", pytest.approx(0.2))]
    assert nothing == []
    from_photos = {
        DISHES: np.array([[b"Samosa", b"Pakora", b""]], np.object_),
        DISH_PROBABILITIES: np.array([[0.7, 0.2, 0.0]], np.float32),
    }
    assert SYSTEM.finer(from_photos) == [named]
    assert SYSTEM.finer({"PROBABILITIES": np.ones((1, 11))}) == [[]]


def test_a_dish_without_a_name_is_never_named() -> None:
    unnamed = [index for index, dish in enumerate(SYSTEM.dishes) if not dish.name]
    assert unnamed
    rows = np.full((1, len(SYSTEM.dishes)), 1e-6, np.float32)
    rows[0, unnamed] = 0.4
    assert all(name for name, _ in SYSTEM.finer({ALL_DISHES: rows})[0])


def test_every_dish_has_a_class_of_the_contract_or_none_and_names_differ() -> None:
    named = [dish.name for dish in SYSTEM.dishes if dish.name]
    assert len(set(named)) == len(named) == 446
    assert {dish.label for dish in SYSTEM.dishes} == {*SYSTEM.labels, ""}
