"""The shared memory in which a real Triton hands photos to its models: others cannot read them there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.another_user import reads
from support.triton import some_models, triton_server

from gourmet.serving.connect import connect
from gourmet.serving.triton_server import TritonServer

MODEL = "food_classifier_onnx"
PHOTO = np.random.default_rng(5).random((1, 3, 224, 224), np.float32)
PIECE = PHOTO.tobytes()[4096:4160]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton that was asked a photo, and has started a model's processes again since its start."""
    with triton_server(some_models(tmp_path_factory.mktemp("models"), MODEL, "digits")) as server:
        server.wait_until_live(180)
        with connect(server.options.http_url) as triton:
            triton.infer(MODEL, {"input": PHOTO})
            triton.unload("digits")
            triton.load("digits")
        yield server


def test_a_photo_stays_there_after_its_answer_and_no_other_user_reads_it(asked: TritonServer) -> None:
    found = asked.memory()
    assert any(PIECE in path.read_bytes() for path in found), "this would find nothing"
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert not asked.exposed()
    for path in found:
        assert reads(path) is None


def test_nor_do_they_read_the_memory_or_the_folders_of_its_processes(asked: TritonServer) -> None:
    assert asked.pid
    for name in ("mem", "environ", "maps"):
        assert reads(Path(f"/proc/{asked.pid}/{name}")) is None
    folder = Path(f"/proc/{asked.pid}/cwd").readlink()
    assert folder.stat().st_mode & 0o777 == 0o700
