"""Rules of the code base that import-linter cannot express, and scripts for developers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import need

ROOT = Path(__file__).parents[2]
TRITON_CLIENTS = {"tritonclient", "geventhttpclient", "grpc"}
IMPORTS_A_CLIENT = re.compile(rf"^\s*(from|import) ({'|'.join(TRITON_CLIENTS)})\b", re.MULTILINE)
# A verb imports these when it needs them; the others compute with torch. So do networks' own modules.
WITHOUT_TORCH = re.compile(
    r"app\b|gourmet\.(cli|commands|doctor|bench(?!\.roofline)|lab|stack|triton_client|reports|pictures|served|generation"
    r"|contracts|systems\.(registry|\w+\.contract))\b(?!.*_network$)"
)

SERVES = (
    *("app", "gourmet.triton_client.triton", "gourmet.systems.translator.serving"),
    *("gourmet.learning.learn_more", "gourmet.commands.translate", "gourmet.commands.learn_more"),
    *("gourmet.commands.deploy", "gourmet.commands.models"),
)
FOREIGN = TRITON_CLIENTS | {
    *("gevent", "torch", "torchvision", "transformers", "sacrebleu"),
    *("onnx", "safetensors", "sklearn", "scipy"),
}


def named_modules() -> dict[str, Path]:
    """Every module by its name; those of triton/ by their folders, since they lie on no path but Triton's."""
    modules = {}
    for folder in (ROOT / "app", ROOT / "src" / "gourmet", ROOT / "triton"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = named_modules()


@pytest.mark.slow
def test_modules_import_only_what_they_need(tmp_path: Path) -> None:
    """The app and the served translator stay light, as NVIDIA's image needs it; few modules import torch."""
    light = [name for name in MODULES if WITHOUT_TORCH.match(name) and not name.endswith("gunicorn_conf")]
    assert len(light) > 100
    code = (
        f"import importlib, sys, types; sys.path.append({str(ROOT)!r})\n"
        f"import {', '.join(SERVES)}; app.create_app()\n"
        f"assert not {FOREIGN} & sys.modules.keys(), {FOREIGN} & sys.modules.keys()\n"
        "sys.modules['triton_python_backend_utils'] = types.ModuleType('what only Triton brings')\n"
        f"for name in {light}:\n"
        "    importlib.import_module(name)\n"
        "    assert not {'torch', 'torchvision'} & sys.modules.keys(), name"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_only_the_client_package_talks_to_triton() -> None:
    for folder in ("app", "src", "triton", "benchmarks", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            if ROOT / "src" / "gourmet" / "triton_client" not in path.parents:
                assert not IMPORTS_A_CLIENT.search(path.read_text()), path


def test_make_says_which_python_does_not_start(tmp_path: Path) -> None:
    command = ["make", "-f", ROOT / "Makefile", "UV=", "PYTHON=/no/python3.12", ".venv/bin/python"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "PYTHON=/no/python3.12 does not start" in done.stdout
    assert "venv module" not in done.stdout


@pytest.mark.parametrize(("ci", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_program_is_a_failure_in_ci_and_a_skip_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no such-program here: `apt-get install such-package`"):
        need("such-program", "such-package")
    assert need("sh").endswith("/sh")


def printed(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_torch_s_compiler_can_be_imported_in_the_checkout() -> None:
    assert printed("import gourmet, torch._dynamo, scripts.audit; print('whole')", ROOT) == "whole\n"


def test_an_installed_triton_package_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("language = 1")
    code = f"import gourmet, sys; sys.path.append({str(tmp_path)!r}); import triton; print(triton.__file__)"
    assert printed(code, ROOT).strip() == str(tmp_path / "triton" / "__init__.py")


SCRIPT = Path(__file__).parents[2] / "scripts" / "audit.py"
REPORT = """
import json
print(json.dumps({{"dependencies": [{{"name": "x", "version": "1", {}}}]}}))
"""


@pytest.mark.parametrize(
    ("pip_audit", "status", "sentence"),
    [
        (REPORT.format("'vulns': []"), 0, "1 packages looked up, 0 with known"),
        (REPORT.format("'vulns': [{'id': 'CVE-1', 'fix_versions': []}]"), 1, "x 1: CVE-1"),
        ("raise SystemExit('it crashed')", 2, "pip-audit failed: it crashed"),
        (REPORT.format("'skip_reason': 'unknown'"), 3, "COULD NOT BE ASKED"),
        ("import requests; requests.get('http://127.0.0.1:9')", 3, "COULD NOT BE ASKED"),
    ],
    ids=["none known", "vulnerable", "crashed", "all unknown", "offline"],
)
def test_the_status_tells_what_became_of_the_audit(
    pip_audit: str, status: int, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "pip_audit.py").write_text(pip_audit)
    command, path = [sys.executable, "-P", SCRIPT], {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    assert sentence in done.stdout


@pytest.mark.slow
def test_the_served_package_gives_its_checkpoint_back_bit_for_bit(tmp_path: Path) -> None:
    command = [sys.executable, "-P", ROOT / "scripts" / "translator_checkpoint.py", "--out", tmp_path]
    assert "bit for bit" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"best.safetensors", "config.json", "source.spm", "target.spm", "vocab.json"}
