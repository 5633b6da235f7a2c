"""Every check of `gourmet doctor` that needs no server, each with the fault brought about."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gourmet.cli import main
from gourmet.doctor import examination, gpus, server
from gourmet.doctor.findings import Finding, Subject
from gourmet.repository import DEFAULT
from gourmet.serving import wheel
from gourmet.serving.ports import free_ports
from gourmet.systems import manifest
from gourmet.systems.food11 import contract

P100 = "0, Tesla P100-PCIE-16GB, 580.95.05, 6.0"
H100 = "0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0"
B200 = "0, NVIDIA B200, 580.95.05, 10.0"


@pytest.fixture
def subject() -> Subject:
    """The checkout on this machine, with nothing running."""
    ports = dict(zip(["--port", "--http-port", "--grpc-port", "--metrics-port"], free_ports(4), strict=True))
    return Subject((DEFAULT,), "127.0.0.1", ports, f"127.0.0.1:{ports['--http-port']}", False, {})


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program of a name on PATH, given as the body of a shell script, and hides the machine's own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    return put


def findings(check: str, subject: Subject) -> list[Finding]:
    """What one check says, as a run through all of them would."""
    only = {check: examination.CHECKS[check]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "CHECKS", only)
        return [finding for _, finding in examination.examine(subject)]


def said(check: str, subject: Subject, level: str) -> str:
    """The only line of that level."""
    (found,) = [finding for finding in findings(check, subject) if finding.level == level]
    return str(found)


def config_of(models: Path, model: str, old: str, new: str) -> None:
    path = models / model / "config.pbtxt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_nothing_fails_where_nothing_is_wrong(subject: Subject, program: Callable[[str, str], None]) -> None:
    found = list(examination.examine(subject))
    assert {name for name, _ in found} == set(examination.CHECKS)
    assert [(name, str(finding)) for name, finding in found if finding.level == "fail"] == []
    assert {name for name, finding in found if finding.level == "warn"} <= {"server", "packages", "files"}


def test_a_python_without_packages_and_without_its_library(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert "this is Python 3.99; Python 3.11 or 3.12 is needed: install one" in said(
        "python", subject, "fail"
    )
    assert "libpython3.99.so.1.0 is nowhere on this machine" in said("libpython", subject, "fail")


def test_an_old_c_library(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
    assert "glibc 2.31; Triton needs 2.35 or newer: use Debian 12" in said("glibc", subject, "fail")


def test_packages_of_other_versions(subject: Subject, tmp_path: Path) -> None:
    for name, version in (("numpy", "2.1.0"), ("onnxruntime", "1.0.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    other = replace(subject, site_packages=tmp_path)
    assert "numpy 2.1.0 is installed" in said("numpy", other, "fail")
    assert "onnxruntime 1.0.0 instead of " in said("packages", other, "warn")


def test_a_missing_wheel(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "find_spec", lambda name: None)
    assert "nvidia-pytriton is missing; run `make setup`" in said("wheel", subject, "fail")


@pytest.mark.parametrize(("size", "level"), [("20m", "fail"), ("100m", "warn")])
def test_shared_memory_that_is_too_small(size: str, level: str) -> None:
    """In a mount namespace of its own the check sees a real /dev/shm of that size."""
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*unshare, mount], capture_output=True).returncode:
        pytest.skip("this machine allows no mount namespaces")
    ask = (
        f"{mount} && {sys.executable} -c 'from gourmet.doctor import machine, findings as f; "
        'print(*map(repr, machine.shared_memory(f.Subject((), "", {}, "", False, {}))))\''
    )
    ran = subprocess.run([*unshare, ask], capture_output=True, text=True, check=True)
    assert f"level='{level}'" in ran.stdout
    assert f"{size.removesuffix('m')} MB are free in /dev/shm" in ran.stdout
    assert "--shm-size=1g" in ran.stdout


def test_a_port_that_somebody_else_has(subject: Subject) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        taken = replace(subject, ports={**subject.ports, "--port": port})
        assert f"port {port} of 127.0.0.1 is in use" in said("ports", taken, "fail")


@pytest.mark.parametrize(
    ("gpu", "tag", "says"),
    [
        (P100, "26.09-py3", "compute capability 6.0, NVIDIA's image 26.09-py3 carries kernels for 7.5 to"),
        (B200, "24.10-py3", "compute capability 10.0, NVIDIA's image 24.10-py3 carries kernels for 6.0 to 9"),
    ],
    ids=["too old", "too new"],
)
def test_a_gpu_that_the_image_has_no_kernels_for(
    subject: Subject,
    program: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gpu: str,
    tag: str,
    says: str,
) -> None:
    program("nvidia-smi", f"echo '{gpu}'")
    dockerfile = tmp_path / "Dockerfile.triton"
    dockerfile.write_text(f"ARG TRITON_TAG={tag}\nFROM nvcr.io/nvidia/tritonserver:${{TRITON_TAG}}\n")
    image = gpus.image(dockerfile)
    monkeypatch.setattr(gpus, "image", lambda: image)
    line = said("kernels", subject, "fail")
    assert says in line
    assert "CUDA failure 209: no kernel image is available for execution on the device" in line
    assert "gourmet config MODEL --cpu" in line
    assert "TRITON_TAG=" in line


def test_a_gpu_that_everything_has_kernels_for(subject: Subject, program: Callable[[str, str], None]) -> None:
    program("nvidia-smi", f"echo '{H100}'")
    assert said("gpu", subject, "ok") == (
        "GPU 0 (NVIDIA H100 80GB HBM3), compute capability 9.0, driver 580.95.05"
    )
    assert "carry what the GPUs need" in said("kernels", subject, "ok")


def test_an_old_driver_knows_no_capability_but_the_card_is_known(
    subject: Subject, program: Callable[[str, str], None]
) -> None:
    program(
        "nvidia-smi",
        'case "$1" in *compute_cap*) echo "Field compute_cap is not a valid field to query."; exit 2;; esac\n'
        "echo '0, Tesla P100-PCIE-16GB, 470.57'\necho '1, Matrox Millennium, 470.57'",
    )
    assert "GPU 0 (Tesla P100-PCIE-16GB), compute capability 6.0" in said("gpu", subject, "ok")
    assert "GPU 1 (Matrox Millennium) has a compute capability that is not known" in said(
        "gpu", subject, "warn"
    )
    assert "has driver 470.57, NVIDIA's image" in said("kernels", subject, "warn")


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA A10", (8, 6)),
        ("NVIDIA L40S", (8, 9)),
        ("NVIDIA L4", (8, 9)),
        ("Tesla P40", (6, 1)),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1)),
        ("NVIDIA GeForce RTX 3090", (8, 6)),
        ("Tesla V100-SXM2-16GB", (7, 0)),
    ],
)
def test_cards_are_known_by_name(
    program: Callable[[str, str], None], name: str, capability: tuple[int, int]
) -> None:
    program("nvidia-smi", f'case "$1" in *compute_cap*) exit 2;; esac\necho "0, {name}, 470.57"')
    assert [gpu.capability for gpu in gpus.find()] == [capability]


def test_a_driver_that_is_not_loaded(subject: Subject, program: Callable[[str, str], None]) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    program("nvidia-smi", f'echo "{words}"; exit 9')
    line = said("gpu", subject, "fail")
    assert words in line
    assert "load or install the driver" in line


def test_docker_without_the_runtime_for_gpus(subject: Subject, program: Callable[[str, str], None]) -> None:
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


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A repository that everybody can reach, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "soup" / "1").mkdir(parents=True)
        (folder / "soup" / "1" / "model.onnx").write_bytes(b"soup")
        yield folder


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root can read everything, so its rights are laid down."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_files_that_cannot_be_read(subject: Subject, open_folder: Path) -> None:
    here = replace(subject, repositories=(open_folder,))
    with as_nobody():
        assert "can be read" in said("files", here, "ok")
    (open_folder / "soup" / "1" / "model.onnx").chmod(0o000)
    with as_nobody():
        line = said("files", here, "fail")
    assert line == (
        f"{open_folder}/soup/1/model.onnx cannot be read by this user: chmod -R u+rX {open_folder}"
    )


@pytest.mark.skipif(os.geteuid() == 1000, reason="this user is the containers'")
def test_files_that_the_containers_user_cannot_read(subject: Subject, open_folder: Path) -> None:
    (open_folder / "soup" / "1").chmod(0o700)
    line = said("files", replace(subject, repositories=(open_folder,)), "warn")
    assert f"{open_folder}/soup/1 cannot be read by user 1000, who serves in the containers" in line


BROKEN_MODELS = {
    "a config that Triton cannot read": (
        lambda m: config_of(m, "food_classifier", "max_batch_size", "max_batchsize"),
        "models",
        "is not a config that Triton can read",
    ),
    "a model under another name": (
        lambda m: config_of(m, "food_classifier", '"food_classifier"', '"soup"'),
        "models",
        "calls the model 'soup', its folder 'food_classifier'",
    ),
    "labels that are missing": (
        lambda m: (m / "food_classifier_onnx" / "labels.txt").unlink(),
        "models",
        "names the labels 'labels.txt' of 'output'",
    ),
    "no version": (
        lambda m: shutil.rmtree(m / "food_classifier_int8" / "1"),
        "models",
        "food_classifier_int8 has no version: deploy one",
    ),
    "code that is none": (
        lambda m: (m / "food_classifier" / "1" / "model.py").write_text("def broken(:\n"),
        "models",
        "model.py is no Python: invalid syntax",
    ),
    "no code": (
        lambda m: (m / "food_classifier" / "1" / "model.py").unlink(),
        "models",
        "1/model.py: a Python model is a model.py",
    ),
    "another input": (
        lambda m: config_of(m, "food_classifier_onnx", 'name: "input"', 'name: "inputs"'),
        "onnx",
        "the config names an input 'inputs', the ONNX file has 'input'",
    ),
    "other dims": (
        lambda m: config_of(m, "food_classifier_onnx", "[ 3, 224, 224 ]", "[ 224, 224, 3 ]"),
        "onnx",
        r"input 'input' is \[-1, 224, 224, 3\] in the config and \[-1, 3, 224, 224\] in the ONNX file",
    ),
    "an ONNX file that was cut short": (
        lambda m: (
            os.truncate(m / "food_classifier_int8" / "1" / "model.onnx", 100_000),
            (m / "food_classifier_int8" / "1" / manifest.MANIFEST).unlink(),
        ),
        "onnx",
        "food_classifier_int8, version 1: .*cannot be opened as an ONNX model",
    ),
    "a checkpoint that was cut short": (
        lambda m: os.truncate(m / "food_classifier" / "1" / "model.pt", 1_000_000),
        "weights",
        r"model\.pt is no TorchScript file \(cut short\?\): deploy it again",
    ),
    "a file that is not the deployed one": (
        lambda m: (m / "food_classifier_int8" / "1" / "model.onnx").write_bytes(b"other"),
        "manifests",
        "has sha256 [0-9a-f]{64}, its manifest says [0-9a-f]{64}: ",
    ),
    "a manifest that went missing": (
        lambda m: (m / "food_classifier" / "1" / manifest.MANIFEST).unlink(),
        "manifests",
        r"manifest\.json is missing",
    ),
}


@pytest.mark.parametrize("fault", BROKEN_MODELS)
def test_models_that_are_broken(subject: Subject, models_copy: Path, fault: str) -> None:
    bring_about, check, says = BROKEN_MODELS[fault]
    bring_about(models_copy)
    line = said(check, replace(subject, repositories=(models_copy,)), "fail")
    assert re.search(says, line), line


def test_weights_of_a_run_that_are_broken(subject: Subject, tmp_path: Path) -> None:
    weights = tmp_path / "last.safetensors"
    weights.write_bytes(b"\x10\x00\x00")
    assert "cannot be read as safetensors" in said("weights", replace(subject, weights=weights), "fail")
    weights.unlink()
    assert "does not exist: train first" in said("weights", replace(subject, weights=weights), "fail")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_an_instance_on_a_gpu_that_is_not_there(
    subject: Subject, models_copy: Path, program: Callable[[str, str], None]
) -> None:
    here = replace(subject, repositories=(models_copy,))
    config_of(models_copy, "food_classifier_onnx", "kind: KIND_AUTO count: 2", "kind: KIND_GPU gpus: [ 1 ]")
    assert "food_classifier_onnx wants a GPU (KIND_GPU), and this machine has none: " in said(
        "devices", here, "fail"
    )
    program("nvidia-smi", f"echo '{H100}'")
    assert "food_classifier_onnx wants GPU 1, and this machine has 1: " in said("devices", here, "fail")


def test_a_page_that_asks_for_a_model_that_is_not_there(subject: Subject) -> None:
    other = replace(subject, environment={contract.MODEL_ENV: "food_clasifier"})
    assert "FOOD11_MODEL_NAME is 'food_clasifier', which is no served model" in said("page", other, "fail")


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (
            {"inputs": (3, 224, 224)},
            "--shape inputs:3,224,224 is for an input that food_classifier_onnx has not, which perf_analyzer "
            "passes over in silence; it has 'input' [3, 224, 224]: give --shape input:3,224,224",
        ),
        ({"input": (224, 224, 3)}, "does not fit: 'input' of food_classifier_onnx is [3, 224, 224]: give"),
        ({"input": (16, 3, 224, 224)}, "a shape is that of one row: give --shape input:3,224,224 and -b 16"),
    ],
    ids=["no such input", "other dims", "with the batch"],
)
def test_shapes_that_do_not_fit_the_model(
    subject: Subject, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    asked = replace(subject, model="food_classifier_onnx", shapes=shapes)
    assert says in said("inputs", asked, "fail")


def test_inputs_for_which_perf_analyzer_needs_more(subject: Subject, models_copy: Path) -> None:
    here = replace(subject, repositories=(models_copy,), model="food_classifier")
    assert "takes bytes, and perf_analyzer makes up random text: give it real" in said("inputs", here, "warn")
    config_of(models_copy, "food_classifier_onnx", "[ 3, 224, 224 ]", "[ 3, -1, 224 ]")
    free = replace(here, model="food_classifier_onnx")
    assert "perf_analyzer needs one: --shape input:3,-1,224 with numbers" in said("inputs", free, "warn")
    assert "there is no model 'soup', there is " in said("inputs", replace(here, model="soup"), "fail")


@pytest.mark.parametrize(
    ("client", "answered", "level"),
    [
        ("2.50.0", "2.51.0", "ok"),
        ("2.50.0", "2.73.0", "ok"),
        ("2.50.0", "2.34.0", "warn"),
        ("2.50.0", "3.0", "fail"),
    ],
)
def test_client_and_server_of_different_versions(client: str, answered: str, level: str) -> None:
    (found,) = server.skew(client, answered)
    assert found.level == level
    assert f"client {client}, server {answered}" in found.cause


def arguments(subject: Subject, *more: str) -> list[str]:
    return ["doctor", *more, *(str(part) for option in subject.ports.items() for part in option)]


def test_the_command_ends_with_1_where_something_fails(subject: Subject, models_copy: Path) -> None:
    (models_copy / "food_classifier" / "1" / manifest.MANIFEST).unlink()
    ran = CliRunner().invoke(main, arguments(subject, "--model-repository", str(models_copy), "--json"))
    found = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert [line["check"] for line in found if line["level"] == "fail"] == ["manifests"]
    assert all(line["fix"] for line in found if line["level"] != "ok")


def test_the_command_prints_a_line_a_finding(subject: Subject) -> None:
    ran = CliRunner().invoke(main, arguments(subject))
    assert ran.exit_code == 0, ran.output
    assert all(line[:4] in ("ok  ", "warn") for line in ran.stdout.splitlines())
    assert "no Triton answers at localhost" in ran.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shape", "input:3"], "--shape is about the inputs of a model: name it with -m"),
        (["-m", "food_classifier", "--shape", "input"], "is no shape: write it like input:3,224,224"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(words: list[str], says: str) -> None:
    ran = CliRunner().invoke(main, ["doctor", *words])
    assert ran.exit_code == 2
    assert says in ran.output
