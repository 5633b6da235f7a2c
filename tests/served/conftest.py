"""Fixtures for tests of served models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.onnx_lab import OnnxLab
from support.triton import RunningTriton


@pytest.fixture(scope="session")
def onnx_lab(lab_triton: RunningTriton) -> Iterator[OnnxLab]:
    lab = OnnxLab(lab_triton.http_url, lab_triton.repository, lab_triton.log)
    yield lab
    lab.client.close()
