"""What `gourmet up` asks before it says that it is ready, and how a model is found to be ready."""

from __future__ import annotations

import re
import shutil

import pytest

from gourmet.client.errors import ModelUnavailable
from gourmet.deploying.deploy import load, rollback
from gourmet.repository import DEFAULT, model_names
from gourmet.serving.connect import ask_sample, connect


@pytest.mark.parametrize(("system", "among"), [("food11", "food"), ("digits", "digits|mnist")])
def test_every_model_of_a_system_says_the_same_of_the_sample_about_as_surely(triton, system, among) -> None:
    models = [model for model in model_names(DEFAULT) if re.search(among, model)]
    answers = [ask_sample(triton.http_url, system, model) for model in models]
    assert len(answers) > 1
    found = [re.fullmatch(r"the sample is (.+), (\d+)% sure", answer) for answer in answers]
    assert len({label[1] for label in found}) == 1, answers
    sure = [int(label[2]) for label in found]
    assert max(sure) - min(sure) <= 5


def test_a_model_that_is_not_there_is_named(triton) -> None:
    with pytest.raises(ModelUnavailable, match="'no_soup' is not ready"):
        ask_sample(triton.http_url, "food11", "no_soup")


def test_after_a_second_version_and_its_rollback_the_model_is_ready_as_before(lab_triton) -> None:
    """Triton keeps a row for each version that it ever loaded, in any order."""
    folder = lab_triton.repository / "digits"
    shutil.copytree(DEFAULT / "digits", folder)
    load(lab_triton.http_url, "digits")
    with connect(lab_triton.http_url) as client:
        shutil.copytree(folder / "1", folder / "2")
        load(lab_triton.http_url, "digits")
        assert client.describe("digits").version == "2"
        rollback([folder])
        load(lab_triton.http_url, "digits")
        assert client.index()["digits"]["state"] == "READY"
        assert client.describe("digits").version == "1"
    assert "the sample is 3" in ask_sample(lab_triton.http_url, "digits", "digits")
