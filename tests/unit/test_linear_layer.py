"""The last layer, solved for activations."""

from __future__ import annotations

import numpy as np

from gourmet.tasks.classification.linear_layer import Floats, Layer, evenly_counted, one_hot, solve


def blank(inputs: int, outputs: int) -> Layer:
    return Layer(np.zeros((outputs, inputs), np.float32), np.zeros(outputs, np.float32))


def clusters(classes: int, rows: int, inputs: int = 6) -> tuple[Floats, np.ndarray]:
    random = np.random.default_rng(0)
    middles = 3 * random.normal(size=(classes, inputs))
    which = np.arange(classes).repeat(rows)
    return (middles[which] + random.normal(size=(classes * rows, inputs))).astype(np.float32), which


def test_classes_that_can_be_told_apart_are_told_apart_and_the_solution_is_the_same_each_time() -> None:
    rows, classes = clusters(3, 40)
    found = []
    for _ in range(2):
        begun = blank(rows.shape[1], 3)
        own = solve(begun, rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=0.01)
        assert (own(rows).argmax(axis=1) == classes).mean() > 0.95
        found.append(own.weight)
    assert np.array_equal(*found)
    near = solve(
        blank(rows.shape[1], 3), rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=0.01, start=own
    )
    assert np.allclose(near.weight, own.weight, atol=0.01), "wherever it starts"


def test_a_solved_layer_is_the_best_one_among_those_near_it() -> None:
    """It is compared by the loss itself: cross-entropy and the pull, on standardised inputs."""
    rows, classes = clusters(3, 40)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)

    def loss(layer: Layer) -> float:
        logits = layer(rows).astype(float)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return float(-logits[np.arange(len(rows)), classes].mean() + 0.05 * (layer.weight**2).sum())

    solved = solve(blank(6, 3), rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=0.1)
    random = np.random.default_rng(1)
    for size in (0.3, 0.03):
        for _ in range(20):
            moved = random.normal(size=solved.weight.shape).astype(np.float32)
            assert loss(solved) < loss(Layer(solved.weight + size * moved, solved.bias))


def test_rows_of_none_of_the_labels_have_low_logits() -> None:
    rows, classes = clusters(3, 40)
    begun = blank(rows.shape[1], 2)  # the third class is none of the labels
    own = solve(begun, rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=0.01)
    level = np.log(np.exp(own(rows)).sum(axis=1))
    assert (level[classes == 2] < 0).mean() > 0.9
    assert (level[classes < 2] > 0).mean() > 0.9


def test_a_strong_pull_keeps_the_layer_as_it_was() -> None:
    rows, classes = clusters(3, 40)
    weight = np.random.default_rng(0).normal(size=(3, rows.shape[1])).astype(np.float32)
    begun = Layer(weight, np.zeros(3, np.float32))
    own = solve(begun, rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=1e4)
    assert np.allclose(own.weight, weight, atol=1e-3)


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    classes = np.array([0] * 30 + [1] * 10)
    counts = evenly_counted(classes, 2)
    assert np.isclose(counts[classes == 0].sum(), counts[classes == 1].sum())
