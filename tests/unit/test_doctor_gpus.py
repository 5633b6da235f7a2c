"""gourmet doctor on GPUs, as a machine that has none can be made to show them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.doctoring import said

from gourmet.doctor import machine
from gourmet.doctor.findings import Examined
from gourmet.repository import DEFAULT


def test_a_gpu_that_the_image_has_no_kernels_for(
    subject: Examined, program: Callable[[str, str], None]
) -> None:
    program("nvidia-smi", "echo '0, Tesla P100-PCIE-16GB, 580.95.05, 6.0'")
    line = said("gpu", subject, "fail")
    assert "compute capability 6.0: NVIDIA's image 26.09-py3 carries kernels for 7.5 to 12.1" in line
    assert "CUDA failure 209: no kernel image is available for execution on the device" in line
    assert "gourmet config MODEL --cpu" in line
    assert "TRITON_TAG=" in line


def test_the_image_that_it_speaks_of_is_the_one_that_is_built() -> None:
    dockerfile = DEFAULT.parents[1] / "Dockerfile.triton"
    assert f"ARG TRITON_TAG={machine.IMAGE}" in dockerfile.read_text().splitlines()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            "0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0",
            "GPU 0 (NVIDIA H100 80GB HBM3), compute capability 9.0, driver 580.95.05",
        ),
        # What is built for one minor version runs on the later ones of its major version.
        ("1, NVIDIA X, 580.95.05, 12.9", "GPU 1 (NVIDIA X), compute capability 12.9, driver 580.95.05"),
    ],
)
def test_a_gpu_that_everything_has_kernels_for(
    subject: Examined, program: Callable[[str, str], None], row: str, says: str
) -> None:
    program("nvidia-smi", f"echo '{row}'")
    assert said("gpu", subject, "ok") == says


def test_a_driver_that_is_not_loaded(subject: Examined, program: Callable[[str, str], None]) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    program("nvidia-smi", f'echo "{words}"; exit 9')
    line = said("gpu", subject, "fail")
    assert words in line
    assert "load or install the driver" in line
