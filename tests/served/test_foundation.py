"""The baseline of `gourmet bench foundation`: a lab's model.py, served beside ours."""

from __future__ import annotations

import pytest

from gourmet.measure import scenarios, sweep
from gourmet.measure.inputs import DataSource


@pytest.mark.slow
def test_the_lab_s_model_is_served_and_agrees_with_ours() -> None:
    chosen = scenarios.load("foundation")
    assert chosen.server
    with chosen.server() as addresses:
        workloads = {model: sweep.prepare(model, addresses, DataSource(32)) for model in chosen.models}
        assert "gave the label of food_classifier for" in chosen.check(workloads)
