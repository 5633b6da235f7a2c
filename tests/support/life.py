"""A system's life beside a stack that runs: a home of its own, verbs, and what there is afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.up import GOURMET

from gourmet.cli import main
from gourmet.repository.lock import LOCK_FILE

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FOOD11_MODEL_NAME", "food_classifier_onnx")
    monkeypatch.delenv("GOURMET_SYSTEMS", raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "home" / "models").mkdir(parents=True)
    return tmp_path / "home"


def gourmet(*words: object, succeeds: bool = True) -> str:
    # torch sets it where it is imported, as in this process.
    env = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    command = [GOURMET, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=env)
    assert (done.returncode == 0) is succeeds, done.stdout + done.stderr
    return done.stdout + done.stderr


def verb(*words: object, succeeds: bool = True) -> str:
    """The same in this process, which imports torch once for all that it is asked."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert (done.exit_code == 0) is succeeds, (done.output, done.exception)
    return done.output


def git_status() -> str:
    command = ["git", "-C", str(CHECKOUT), "status", "--porcelain"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def status(url: str | urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        return exc.code


def listed() -> dict[str, dict[str, Any]]:
    rows = json.loads(verb("list", "--json"))
    return {row["model"] or row["system"]: row for row in rows}


def everything(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*") if path.name != LOCK_FILE)
