"""Every check of `gourmet doctor` that needs no server, each with the fault brought about (on a copy)."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from support.cli import said

from gourmet import doctor
from gourmet.doctor import CHECKS, Examined, examine
from gourmet.served import manifest


def finding_of(check: str, subject: Examined, level: str) -> str:
    """Return the only finding of that level in one check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "CHECKS", {check: CHECKS[check]})
        (only,) = [finding for _, finding in examine(subject) if finding.level == level]
    return str(only)


def test_nothing_fails_where_nothing_is_wrong(subject: Examined, program: Callable[[str, str], None]) -> None:
    result = list(examine(subject))
    assert {name for name, _ in result} == set(CHECKS)
    assert [(name, str(finding)) for name, finding in result if finding.level == "fail"] == []
    assert {name for name, finding in result if finding.level == "warn"} <= {"server", "packages"}


def test_packages_of_other_versions_are_reported(
    subject: Examined, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text(f"# tested\nonnxruntime==1.0.0\npillow=={version('pillow')}\nnot-installed==1\n")
    monkeypatch.setattr(doctor, "_PINS", pins)
    words = f"other versions: onnxruntime {version('onnxruntime')} instead of 1.0.0: run"
    assert words in finding_of("packages", subject, "warn")


@pytest.mark.parametrize(("size", "level"), [("20m", "fail"), ("100m", "warn")])
def test_too_little_shared_memory_is_reported(size: str, level: str) -> None:
    """In a mount namespace of its own the check sees a real /dev/shm of that size."""
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*unshare, mount], capture_output=True).returncode:
        pytest.skip("this machine allows no mount namespaces")
    print_it = "from gourmet import doctor; print(*map(repr, doctor.shared_memory(None)))"
    ask = f"{mount} && {sys.executable} -c '{print_it}'"
    ran = subprocess.run([*unshare, ask], capture_output=True, text=True, check=True)
    assert f"level='{level}'" in ran.stdout
    assert f"{size.removesuffix('m')} MB are free in /dev/shm" in ran.stdout
    assert "--shm-size=1g" in ran.stdout


def test_a_port_of_another_program_is_reported(subject: Examined) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        taken = replace(subject, ports={**subject.ports, "--port": port})
        assert f"port {port} of 127.0.0.1 is in use" in finding_of("ports", taken, "fail")


@pytest.mark.parametrize(
    ("address", "option", "level", "words"),
    [
        ("0.0.0.0", "--http-port", "warn", "is open on 0.0.0.0, beyond loopback"),
        ("0.0.0.0", "--http-port", "warn", "CVE-2025-23310"),
        ("0.0.0.0", "--port", "ok", "held by the running stack"),  # the web app's, which is for others
        ("::ffff:127.0.0.1", "--http-port", "ok", "held by the running stack"),
    ],
)
def test_open_ports_of_triton_are_reported_with_its_known_vulnerabilities(
    address: str, option: str, level: str, words: str, subject: Examined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "http_ok", lambda _url, _within_s: True)
    mapped = ":" in address
    family = socket.AF_INET6 if mapped else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=mapped) as listener:
        port = listener.getsockname()[1]
        taken = replace(subject, ports={option: port, "--http-port": port})
        assert words in finding_of("ports", taken, level)


def test_a_failure_exits_with_1_and_each_finding_has_a_line(subject: Examined, models_copy: Path) -> None:
    ports = [word for option in subject.ports.items() for word in option]
    (models_copy / "food_classifier" / "1" / manifest.MANIFEST).unlink()
    failed = said("doctor", "--model-repository", models_copy, "--json", *ports, status=1)
    result = json.loads(failed)
    assert [line["check"] for line in result if line["level"] == "fail"] == ["manifests"]
    assert all(line["fix"] for line in result if line["level"] != "ok")
    lines = said("doctor", *ports).splitlines()
    assert all(line[:4] in ("ok  ", "warn") for line in lines)


def test_a_gpu_without_kernels_is_reported(subject: Examined, program: Callable[[str, str], None]) -> None:
    program("nvidia-smi", "echo '0, Tesla P100-PCIE-16GB, 580.95.05, 6.0'")
    line = finding_of("gpu", subject, "fail")
    assert "compute capability 6.0: NVIDIA's image has kernels for 7.5 to 12.1" in line
    assert "CUDA failure 209: no kernel image is available for execution on the device" in line
    assert "gourmet config MODEL --cpu" in line


def test_a_supported_gpu_passes(subject: Examined, program: Callable[[str, str], None]) -> None:
    program("nvidia-smi", "echo '0, NVIDIA X, 580.95.05, 12.9'")  # of a major version the later ones do too
    assert finding_of("gpu", subject, "ok") == "GPU 0 (NVIDIA X), compute capability 12.9, driver 580.95.05"


def test_an_unloaded_driver_is_reported(subject: Examined, program: Callable[[str, str], None]) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    program("nvidia-smi", f'echo "{words}"; exit 9')
    line = finding_of("gpu", subject, "fail")
    assert words in line
    assert "load or install the driver" in line


def config_of(models: Path, model: str, old: str, new: str) -> None:
    path = models / model / "config.pbtxt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def other_weights(models: Path) -> None:
    (models / "food_classifier_int8" / "1" / "model.onnx").write_bytes(b"other")


@pytest.mark.parametrize(
    ("bring_about", "check", "level", "says"),
    [
        (
            lambda models: config_of(models, "food_classifier", "max_batch_size", "max_batchsize"),
            *("models", "fail", "is not a config that Triton can read"),
        ),
        (other_weights, "manifests", "fail", "has sha256 [0-9a-f]{64}, its manifest says [0-9a-f]{64}: "),
        (
            lambda models: config_of(models, "translator_bls", "count: 2", "count: 1"),
            *("models", "warn", "translator_bls has a queue policy and one instance"),
        ),
    ],
)
def test_broken_models_are_reported(
    subject: Examined,
    models_copy: Path,
    bring_about: Callable[[Path], None],
    check: str,
    level: str,
    says: str,
) -> None:
    bring_about(models_copy)
    line = finding_of(check, replace(subject, repositories=(models_copy,)), level)
    assert re.search(says, line), line
