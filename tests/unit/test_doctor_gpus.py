"""gourmet doctor on GPUs, as a machine that has none can be made to show them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from unit.doctoring import findings, said

from gourmet.doctor import gpus
from gourmet.doctor.findings import Examined
from gourmet.repository import DEFAULT

P100 = "0, Tesla P100-PCIE-16GB, 580.95.05, 6.0"
H100 = "0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0"
B200 = "0, NVIDIA B200, 580.95.05, 10.0"


@pytest.fixture
def torch_for(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the installed torch be built for this CUDA and these GPUs."""

    def build(cuda: str | None, *arches: str) -> None:
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(arches))

    return build


def test_a_gpu_that_the_image_has_no_kernels_for(
    subject: Examined, program: Callable[[str, str], None], torch_for: Callable[..., None]
) -> None:
    program("nvidia-smi", f"echo '{P100}'")
    torch_for(None)
    line = said("kernels", subject, "fail")
    assert "compute capability 6.0, NVIDIA's image 26.09-py3 carries kernels for 7.5 to 12.1" in line
    assert "CUDA failure 209: no kernel image is available for execution on the device" in line
    assert "gourmet config MODEL --cpu" in line
    assert "TRITON_TAG=" in line


def test_the_image_of_the_table_is_the_one_that_is_built() -> None:
    tag = gpus.IMAGE.name.split()[-1]
    assert f"\nARG TRITON_TAG={tag}\n" in "\n" + (DEFAULT.parents[1] / "Dockerfile.triton").read_text()


@pytest.mark.parametrize(
    ("gpu", "cuda", "arches", "says"),
    [
        (P100, "13.0", ("sm_75", "sm_120"), "capability 6.0, torch TORCH carries kernels for 7.5 to 12.0"),
        (B200, "12.6", ("sm_50", "sm_90"), "capability 10.0, torch TORCH carries kernels for 5.0 to 9.0"),
    ],
    ids=["too old", "too new"],
)
def test_a_gpu_that_the_installed_torch_has_no_kernels_for(
    subject: Examined,
    program: Callable[[str, str], None],
    torch_for: Callable[..., None],
    gpu: str,
    cuda: str,
    arches: tuple[str, ...],
    says: str,
) -> None:
    program("nvidia-smi", f"echo '{gpu}'")
    torch_for(cuda, *arches)
    found = [str(finding) for finding in findings("kernels", subject) if finding.level == "fail"]
    assert says.replace("TORCH", torch.__version__) in found[-1]
    assert "install another torch" in found[-1]


def test_what_runs_on_a_gpu_runs_on_the_later_ones_of_its_major_version(
    subject: Examined, program: Callable[[str, str], None], torch_for: Callable[..., None]
) -> None:
    program("nvidia-smi", "echo '0, NVIDIA GB10, 580.95.05, 12.1'")
    torch_for("13.0", "sm_75", "sm_120")
    assert "carry what the GPUs need" in said("kernels", subject, "ok")


def test_a_gpu_that_everything_has_kernels_for(
    subject: Examined, program: Callable[[str, str], None], torch_for: Callable[..., None]
) -> None:
    torch_for("13.0", "sm_75", "sm_90")
    program("nvidia-smi", f"echo '{H100}'")
    assert said("gpu", subject, "ok") == (
        "GPU 0 (NVIDIA H100 80GB HBM3), compute capability 9.0, driver 580.95.05"
    )
    assert "carry what the GPUs need" in said("kernels", subject, "ok")


def test_a_driver_that_is_not_loaded(subject: Examined, program: Callable[[str, str], None]) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    program("nvidia-smi", f'echo "{words}"; exit 9')
    line = said("gpu", subject, "fail")
    assert words in line
    assert "load or install the driver" in line


def test_docker_without_the_runtime_for_gpus(subject: Examined, program: Callable[[str, str], None]) -> None:
    assert "no Docker here" in said("docker", subject, "ok")
    program("nvidia-smi", f"echo '{H100}'")
    program("docker", """echo '{"runc":{"path":"runc"}}'""")
    assert "no NVIDIA runtime to hand it to containers: install nvidia-container-toolkit" in said(
        "docker", subject, "fail"
    )
    program("docker", """echo '{"nvidia":{},"runc":{}}'""")
    assert said("docker", subject, "ok") == "Docker answers, with NVIDIA's runtime"
    program("docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    assert "Docker does not answer (Cannot connect to the Docker daemon): start it" in said(
        "docker", subject, "warn"
    )
