"""Python started in the checkout finds torch whole, although the folder triton/ lies there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def said(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_torch_s_compiler_can_be_imported_in_the_checkout() -> None:
    assert said("import gourmet, torch._dynamo, scripts.audit; print('whole')", ROOT) == "whole\n"


def test_an_installed_triton_package_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("language = 1")
    code = f"import gourmet, sys; sys.path.append({str(tmp_path)!r}); import triton; print(triton.__file__)"
    assert said(code, ROOT).strip() == str(tmp_path / "triton" / "__init__.py")
