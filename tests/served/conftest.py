"""Fixtures for tests of served models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import pytest
import tritonclient.http as triton_http
from support.triton import RunningTriton
from tritonclient.utils import np_to_triton_dtype

Arrays = Mapping[str, npt.NDArray[Any]]


class OnnxLab:
    """Small ONNX models made on the spot, served by the real Triton of `lab_triton`."""

    def __init__(self, http_url: str, repository: Path, log: list[str]) -> None:
        self.http_url = http_url
        self.repository = repository
        self.log = log
        self.client = triton_http.InferenceServerClient(http_url, concurrency=32)

    def put(self, name: str, model: str | bytes, config: str | None, file: str = "model.onnx") -> None:
        """Write a model into the repository; without a config, Triton has only the file to go by.

        The model is given as ONNX text, `(float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }`, or as
        the bytes of a file that is perhaps no model at all.
        """
        path = self.repository / name / "1" / file
        path.parent.mkdir(parents=True, exist_ok=True)  # a test that is asked once more
        path.write_bytes(model if isinstance(model, bytes) else _compiled(model))
        if config is not None:
            text = f'backend: "onnxruntime"\n{config}'
            (self.repository / name / "config.pbtxt").write_text(text)

    def serve(self, name: str, model: str | bytes, config: str | None = "") -> None:
        """Put the model into the repository and load it."""
        self.put(name, model, config)
        self.client.load_model(name)

    def ask(
        self, name: str, feeds: Arrays, outputs: Sequence[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        return _answer(self.client.infer(name, _inputs(feeds), outputs=_outputs(outputs)))

    def ask_together(
        self, name: str, all_feeds: Sequence[Arrays]
    ) -> list[dict[str, npt.NDArray[Any]] | Exception]:
        """Send all requests before waiting for any; a request that fails gives its error."""
        requests = [self.client.async_infer(name, _inputs(feeds)) for feeds in all_feeds]
        answers: list[dict[str, npt.NDArray[Any]] | Exception] = []
        for request in requests:
            try:
                answers.append(_answer(request.get_result()))
            except triton_http.InferenceServerException as exc:
                answers.append(exc)
        return answers


def _compiled(text: str) -> bytes:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> test {text}')
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def _inputs(feeds: Arrays) -> list[triton_http.InferInput]:
    tensors = []
    for name, array in feeds.items():
        tensor = triton_http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def _outputs(names: Sequence[str] | None) -> list[triton_http.InferRequestedOutput] | None:
    return None if names is None else [triton_http.InferRequestedOutput(name) for name in names]


def _answer(result: triton_http.InferResult) -> dict[str, npt.NDArray[Any]]:
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


@pytest.fixture(scope="session")
def onnx_lab(lab_triton: RunningTriton) -> Iterator[OnnxLab]:
    lab = OnnxLab(lab_triton.http_url, lab_triton.repository, lab_triton.log)
    yield lab
    lab.client.close()
