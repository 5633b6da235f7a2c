"""Every check of `gourmet doctor` that needs no server, each with the fault brought about."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from unit.doctoring import said

from gourmet.cli import main
from gourmet.commands.doctor import CHECKS, examine
from gourmet.doctor import machine
from gourmet.doctor.findings import Examined
from gourmet.runtime import manifest
from gourmet.serving import wheel


def test_nothing_fails_where_nothing_is_wrong(subject: Examined, program: Callable[[str, str], None]) -> None:
    found = list(examine(subject))
    assert {name for name, _ in found} == set(CHECKS)
    assert [(name, str(finding)) for name, finding in found if finding.level == "fail"] == []
    assert {name for name, finding in found if finding.level == "warn"} <= {"server", "packages"}


def test_packages_of_other_versions(
    subject: Examined, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text(f"# tested\nonnxruntime==1.0.0\npillow=={version('pillow')}\nnot-installed==1\n")
    monkeypatch.setattr(machine, "_PINS", pins)
    assert f"other versions: onnxruntime {version('onnxruntime')} instead of 1.0.0: run" in said(
        "packages", subject, "warn"
    )


def test_a_missing_wheel(subject: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
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
        f"{mount} && {sys.executable} -c 'from gourmet.doctor import machine; "
        "print(*map(repr, machine.shared_memory(None)))'"
    )
    ran = subprocess.run([*unshare, ask], capture_output=True, text=True, check=True)
    assert f"level='{level}'" in ran.stdout
    assert f"{size.removesuffix('m')} MB are free in /dev/shm" in ran.stdout
    assert "--shm-size=1g" in ran.stdout


def test_a_port_that_somebody_else_has(subject: Examined) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        taken = replace(subject, ports={**subject.ports, "--port": port})
        assert f"port {port} of 127.0.0.1 is in use" in said("ports", taken, "fail")


def arguments(subject: Examined, *more: str) -> list[str]:
    return ["doctor", *more, *(str(part) for option in subject.ports.items() for part in option)]


def test_the_command_ends_with_1_where_something_fails(subject: Examined, models_copy: Path) -> None:
    (models_copy / "food_classifier" / "1" / manifest.MANIFEST).unlink()
    ran = CliRunner().invoke(main, arguments(subject, "--model-repository", str(models_copy), "--json"))
    found = json.loads(ran.stdout)
    assert ran.exit_code == 1
    assert [line["check"] for line in found if line["level"] == "fail"] == ["manifests"]
    assert all(line["fix"] for line in found if line["level"] != "ok")


def test_the_command_prints_a_line_a_finding(subject: Examined) -> None:
    ran = CliRunner().invoke(main, arguments(subject))
    assert ran.exit_code == 0, ran.output
    assert all(line[:4] in ("ok  ", "warn") for line in ran.stdout.splitlines())
    assert "no Triton answers at localhost" in ran.stdout
