"""Every served classifier of pictures, of whichever system: a new one is in these tests by itself."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import tritonclient.http as triton_http
from support.triton import RunningTriton

from gourmet.client.errors import ModelUnavailable
from gourmet.contracts import SYSTEM_PARAMETER, ModelInfo
from gourmet.pictures.classifier import PictureClassifier
from gourmet.repository import DEFAULT, model_names, read_config
from gourmet.serving.connect import ask_sample, connect
from gourmet.systems import registry

SYSTEMS = {name: each for name, each in registry.load_all().items() if isinstance(each, PictureClassifier)}
MODELS = {
    name: system
    for name in model_names(DEFAULT)
    if (system := read_config(DEFAULT / name).parameters[SYSTEM_PARAMETER].string_value) in SYSTEMS
}
# Its inputs have whole shapes, with a dimension of rows in them, as its public name promises.
WHOLE_SHAPES = "onnx-mnist-cpu"


@dataclass(frozen=True)
class Served:
    """A model, and how it is asked and answers."""

    client: triton_http.InferenceServerClient
    info: ModelInfo
    system: PictureClassifier

    def tensor(self, rows: np.ndarray) -> list[triton_http.InferInput]:
        (spec,) = self.info.inputs
        tensor = triton_http.InferInput(spec.name, list(rows.shape), spec.datatype)
        tensor.set_data_from_numpy(rows)
        return [tensor]

    def encoded(self, pictures: list[bytes]) -> np.ndarray:
        return np.concatenate(
            [self.system.encode(picture, self.info.inputs[0].datatype) for picture in pictures]
        )

    def probabilities(self, result: triton_http.InferResult) -> np.ndarray:
        outputs = {output.name: result.as_numpy(output.name) for output in self.info.outputs}
        return self.system.probabilities(outputs, self.info)


@pytest.fixture(params=MODELS)
def served(request: pytest.FixtureRequest, triton: RunningTriton) -> Iterator[Served]:
    with connect(triton.http_url) as ours:
        info = ours.describe(request.param)
    with triton_http.InferenceServerClient(triton.http_url, concurrency=16, network_timeout=120) as client:
        yield Served(client, info, SYSTEMS[MODELS[request.param]])


def test_rows_get_their_own_answers_however_they_are_cut_and_merged(served: Served) -> None:
    pictures = list(served.system.examples(24, 5))
    rows, model = served.encoded(pictures), served.info.name
    alone = np.concatenate(
        [served.probabilities(served.client.infer(model, served.tensor(row[None]))) for row in rows]
    )
    assert np.abs(alone[:, None] - alone[None]).max(axis=2).max() > 0.01, "too much alike to tell a mix-up"
    random, max_batch = np.random.default_rng(4), served.info.max_batch_size or 1
    cuts = [random.integers(0, len(rows), random.integers(1, min(8, max_batch) + 1)) for _ in range(30)]
    waiting = [served.client.async_infer(model, served.tensor(rows[chosen])) for chosen in cuts]
    for chosen, request in zip(cuts, waiting, strict=True):
        np.testing.assert_allclose(served.probabilities(request.get_result()), alone[chosen], atol=2e-3)


def test_more_rows_than_the_largest_batch_and_another_shape_are_refused_with_a_reason(served: Served) -> None:
    row = served.encoded([served.system.sample()])
    many = np.concatenate([row] * ((served.info.max_batch_size or 1) + 1))
    for wrong in (many, np.stack([row, row], axis=-1)):
        with pytest.raises(triton_http.InferenceServerException, match=r"(?i)shape|batch-size must be <="):
            served.client.infer(served.info.name, served.tensor(wrong))


def test_triton_s_classification_extension_names_the_label(served: Served) -> None:
    config = read_config(DEFAULT / served.info.name)
    output = next((candidate for candidate in config.output if candidate.label_filename), None)
    if output is None:
        pytest.skip("its output has no file of labels")
    tensor = served.tensor(served.encoded([served.system.sample()]))
    best = served.probabilities(served.client.infer(served.info.name, tensor))[0].argmax()
    wanted = [triton_http.InferRequestedOutput(output.name, class_count=1)]
    answer = served.client.infer(served.info.name, tensor, outputs=wanted).as_numpy(output.name)
    assert answer.ravel()[0].decode().split(":")[1:] == [str(best), served.system.labels[best]]


@pytest.mark.parametrize("name", [each for each in MODELS if each != WHOLE_SHAPES])
def test_the_config_has_the_fields_that_nvidia_s_image_client_reads(name: str) -> None:
    config = read_config(DEFAULT / name)
    if config.backend != "onnxruntime":
        pytest.skip("it takes the picture as it is")
    (image,), (answer,) = config.input, config.output
    assert config.max_batch_size > 0
    assert sum(size > 1 for size in answer.dims) == 1  # one vector a picture
    # A picture of a known size, with its channels where the format says.
    sizes = list(image.dims)
    channels = {image.FORMAT_NCHW: sizes[0], image.FORMAT_NHWC: sizes[2]}.get(image.format, 0)
    assert channels in (1, 3), "no format, or not the one of its shape"
    assert math.prod(sizes) == channels * max(sizes) ** 2


@pytest.mark.parametrize("system", SYSTEMS)
def test_all_models_of_a_system_agree_on_the_sample(triton: RunningTriton, system: str) -> None:
    models = [name for name, owner in MODELS.items() if owner == system]
    answers = [ask_sample(triton.http_url, system, model) for model in models]
    matches = [re.fullmatch(r"the sample is (.+), (\d+)% sure", answer) for answer in answers]
    assert len({match[1] for match in matches if match}) == 1, answers
    sure = [int(match[2]) for match in matches if match]
    assert len(sure) == len(models) > 1
    assert max(sure) - min(sure) <= 5


def test_a_missing_model_is_named(triton: RunningTriton) -> None:
    with pytest.raises(ModelUnavailable, match="'no_soup' is not ready"):
        ask_sample(triton.http_url, "food11", "no_soup")
