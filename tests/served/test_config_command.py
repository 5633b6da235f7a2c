"""`gourmet config` against a running Triton, under load."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.http as triton_http
from click.testing import Result
from support.cli import gourmet
from support.repeating import Repeating

from gourmet.repository.models import read_config

MODEL = "food_classifier_onnx"


@pytest.fixture
def gourmet_config(triton):
    def run(*arguments: str) -> Result:
        return gourmet("config", "--url", triton.http_url, "--repository", triton.repository, *arguments)

    before = run(MODEL, "--raw").output
    yield run
    if run(MODEL, "--raw").output != before:
        assert run(MODEL, "--reset").exit_code == 0


@pytest.mark.smoke
def test_without_options_the_config_is_summarised_and_raw_prints_it(gourmet_config, tmp_path) -> None:
    assert gourmet_config(MODEL).output.startswith("2 instances on the CPU; batches of up to 16 rows")
    result = gourmet_config(MODEL, "--raw")
    assert result.exit_code == 0, result.output
    (tmp_path / "config.pbtxt").write_text(result.output)
    assert read_config(tmp_path).name == MODEL


@pytest.mark.slow
def test_every_variant_but_the_gpus_loads_here(gourmet_config) -> None:
    for variant in ("one-instance", "dynamic-batching", "two-instances", "four-instances"):
        assert gourmet_config(MODEL, "--variant", variant).exit_code == 0


@pytest.mark.promise("README: a config changes while the model serves")
def test_a_change_under_load_applies_at_once_fails_no_request_and_can_be_reset(
    gourmet_config, triton
) -> None:
    answered: list[tuple[int, ...]] = []
    tensor = triton_http.InferInput("input", [1, 3, 224, 224], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3, 224, 224), np.float32))

    def ask(*_: int) -> None:
        with triton_http.InferenceServerClient(triton.http_url) as client:
            answered.append(client.infer(MODEL, [tensor]).as_numpy("output").shape)

    shown = json.loads(gourmet_config(MODEL, "--json").output)
    assert shown.keys() == {"model", "config", "serve"}
    with Repeating(ask, 2):
        changed = json.loads(gourmet_config(MODEL, "--instances", "3", "--delay", "100us", "--json").output)
        reset = gourmet_config(MODEL, "--reset").output
    assert changed["was"] == shown["config"]
    assert changed["config"]["instance_group"][0]["count"] == 3
    assert "now: 2 instances on the CPU; batches of up to 16 rows; no dynamic batching" in reset
    assert set(answered) == {(1, 11)}


def test_a_config_that_cannot_load_leaves_the_old_one_serving(gourmet_config) -> None:
    result = gourmet_config(MODEL, "--variant", "two-gpus")
    assert result.exit_code == 1
    assert "goes on with the one before" in result.output
    assert "kind: KIND_CPU" in gourmet_config(MODEL, "--raw").output


def test_an_unknown_model_is_refused_with_the_known_models(gourmet_config) -> None:
    result = gourmet_config("food_clasifier")
    assert result.exit_code == 2
    assert "no model 'food_clasifier'; it has captioner, captioner_decoder, captioner_" in result.output


def test_a_missing_server_is_reported_with_the_next_step() -> None:
    result = gourmet("config", MODEL, "--url", "127.0.0.1:9")
    assert result.exit_code == 1
    assert "no Triton answers at 127.0.0.1:9" in result.output
    assert "gourmet up" in result.output


@pytest.mark.parametrize("delay", ["5", "-1us"])
def test_a_time_without_its_unit_is_refused(delay: str) -> None:
    result = gourmet("config", MODEL, f"--delay={delay}")
    assert result.exit_code == 2
    assert "write it like 100us, 2ms or 0" in result.output
