"""Files in the temporary folder, which every user can write to, are never imported."""

from __future__ import annotations

from pathlib import Path

from support.foreign_modules import sprung, trap
from support.up import Up


def test_the_web_app_imports_nothing_from_the_temporary_folder(tmp_path: Path) -> None:
    up = Up("--web-only", "--url", "127.0.0.1:9", tmp=trap(tmp_path, "sched", "flask", "gunicorn"))
    try:
        up.wait_for(f"http://127.0.0.1:{up.port}")
    finally:
        up.stop()
    assert not sprung(tmp_path), up.output
