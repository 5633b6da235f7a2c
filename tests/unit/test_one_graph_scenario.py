"""The scenario of a picture that is seen once: its loads, what it says of them, and its one graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support import small_captioner
from support.points import a_point

from gourmet.client.model_config import parse
from gourmet.deploying.deploy import deploy
from gourmet.errors import GourmetError
from gourmet.measure import scenarios
from gourmet.measure.scenario import Points
from gourmet.measure.scenarios import one_graph
from gourmet.runtime.decoding import package
from gourmet.systems.captioner.baselines import BASELINES


def test_it_has_the_loads_of_the_project_s_tables() -> None:
    chosen = scenarios.load("captioner")
    levels = {arm.asks: [load.level for load in arm.loads] for arm in chosen.arms}
    assert levels["base_model_cpu"] == [1, 2, 3, 4]
    assert levels["base_model_cpu through the loop"] == [1, 4]
    assert chosen.page == "captioner.md"
    on_gpus = scenarios.load("captioner-gpu")
    assert on_gpus.needs_gpu
    assert [(arm.name, len(arm.loads)) for arm in on_gpus.arms] == [
        ("base_model_gpu", 8),
        ("base_model_gpu_scheduling", 8),
        ("base_model_multi_gpu", 10),
        ("trt_model", 4),
    ]


def test_captions_are_compared_turn_by_turn_and_bytes_are_told() -> None:
    turns = []
    for rate in (2.0, 4.0):
        for level, times in ((1, 6), (4, 9)):
            turns.append(a_point(one_graph.LOOP, (rate,), level, transferred=20e6))
            turns.append(a_point(one_graph.INSIDE, (times * rate,), level))
            turns.append(a_point(one_graph.STREAMED, (times * rate,), level, transferred=40e3))
    chosen, points = scenarios.load("captioner"), Points(turns)
    told = {goal.what: goal.per_turn for goal in chosen.goals(points)}
    assert told == {
        "loop in process ÷ loop in the client, c=1": (6.0, 6.0),
        "loop in process ÷ loop in the client, c=4": (9.0, 9.0),
    }
    sent, _ = chosen.read(points)
    assert "20.0 MB by the client's loop and 40.0 KB as a stream of ours, 1/500 of it" in sent.says


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "captioner" / "1").mkdir(parents=True)
    checkpoint = small_captioner.checkpoint(folder / "run", "blip")
    package.write(folder / "captioner" / "1" / package.FILE, small_captioner.files(checkpoint))
    return folder


def test_the_one_graph_is_given_the_project_s_configs_and_never_a_word_that_is_not_there(
    models: Path,
) -> None:
    deployment = BASELINES.open(models)
    assert set(BASELINES.formats) == deployment.targets.keys()
    folder, _ = deploy(deployment, "base_model_cpu", models)
    config = parse((folder.parent / "config.pbtxt").read_text())
    assert (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)) == (8, [1, 2, 4, 8])
    assert [list(each.dims) for each in config.input] == [[3, 384, 384], [-1], [-1]]
    ids = np.array([[0, 1 << 40, -5]])  # as perf_analyzer draws them
    (logits,) = onnxruntime.InferenceSession(folder / "model.onnx").run(
        ["logits"],
        {
            "pixel_values": np.zeros((1, 3, 384, 384), np.float32),
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
        },
    )
    assert logits.shape == (1, 3, config.output[0].dims[1])
    assert np.isfinite(logits).all()
    assert deployment.targets["base_model_multi_gpu"].gpus == 2


def test_without_a_captioner_there_is_nothing_to_make_it_of(tmp_path: Path) -> None:
    with pytest.raises(GourmetError, match="has no captioner to make it of: deploy that first"):
        BASELINES.open(tmp_path)
