"""What `gourmet up` asks before it says that it is ready."""

from __future__ import annotations

import pytest

from gourmet.repository import DEFAULT, model_names
from gourmet.serving.asking import ModelUnavailable, ask_sample
from gourmet.serving.asking import triton as connect


def test_every_food_model_calls_the_sample_the_same_with_the_same_confidence(triton) -> None:
    with connect(triton.http_url) as client:
        answers = [ask_sample(client, "food11", model) for model in model_names(DEFAULT) if "food" in model]
    labels = {label for label, _ in answers}
    assert len(labels) == 1
    assert max(sure for _, sure in answers) - min(sure for _, sure in answers) < 0.05


def test_a_model_that_is_not_there_is_named(triton) -> None:
    with connect(triton.http_url) as client, pytest.raises(ModelUnavailable, match="'no_soup' is not ready"):
        ask_sample(client, "food11", "no_soup")
