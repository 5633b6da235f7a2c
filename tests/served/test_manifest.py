"""A real Triton refuses weights that are not the deployed ones, and says both hashes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served import manifest


@pytest.fixture
def put(onnx_lab: Any) -> Any:
    """Copies a model of the product into the running Triton's repository under another name."""

    def copy(source: str, name: str) -> Path:
        model = Path(shutil.copytree(DEFAULT_REPOSITORY / source, onnx_lab.repository / name))
        config = model / "config.pbtxt"
        config.write_text(config.read_text().replace(f'name: "{source}"', f'name: "{name}"'))
        return model / "1"

    return copy


@pytest.mark.promise("SECURITY 14")
@pytest.mark.parametrize(
    ("source", "file"), [("food_classifier", "model_int8.onnx"), ("food_classifier_int8", "model.onnx")]
)
def test_one_changed_byte_of_the_weights_is_refused_with_both_hashes(
    onnx_lab: Any, put: Any, source: str, file: str
) -> None:
    name = f"tampered_{source}"
    weights = put(source, name) / file
    deployed = manifest.sha256(weights)
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    why = f"has sha256 {manifest.sha256(weights)}, its manifest says {deployed}"
    with pytest.raises(InferenceServerException, match=why):
        onnx_lab.client.load_model(name)
    assert not onnx_lab.client.is_model_ready(name)
    # Without its manifest it is not served either.
    (weights.parent / manifest.MANIFEST).unlink()
    with pytest.raises(InferenceServerException, match=r"manifest\.json is missing"):
        onnx_lab.client.load_model(name)


def test_the_hash_is_verified_before_the_file_is_read(onnx_lab: Any) -> None:
    """Without tensors in the config they come from the file, which is opened for that even earlier."""
    name = "tampered_and_unnamed"
    onnx_lab.put(name, "(float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }", "")
    says = f'{{"file": "model.onnx", "sha256": "{"0" * 64}"}}'
    (onnx_lab.repository / name / "1" / manifest.MANIFEST).write_text(says)
    with pytest.raises(InferenceServerException, match=f"its manifest says {'0' * 64}"):
        onnx_lab.client.load_model(name)
