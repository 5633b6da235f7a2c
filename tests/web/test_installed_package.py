"""The wheel in an empty environment, outside any checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.up import Up

from gourmet.systems.food11.contract import SAMPLES

ROOT = Path(__file__).parents[2]
PHOTO = SAMPLES / "06_spaghetti.jpg"
PAGES = ("/", "/compare", "/digits", "/translate", "/caption", "/lab", "/api/docs")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_installed_wheel_shows_its_pages_and_classifies_a_photo(tmp_path: Path) -> None:
    checkout, environment = tmp_path / "checkout", tmp_path / "environment"
    subprocess.run(["git", "clone", "-q", "--local", ROOT, checkout], check=True)
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", tmp_path, checkout], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    pins = ROOT / "requirements" / "constraints.txt"
    into = [*pip, "--python", environment / "bin" / "python", "install", "-q", "-c", pins, wheel]
    subprocess.run(into, check=True)
    home, gourmet = tmp_path / "home", str(environment / "bin" / "gourmet")
    env = {"GOURMET_HOME": str(home), "GOURMET_KEYS": str(tmp_path / "keys")}
    up = Up(tmp=tmp_path, env=env, program=gourmet)
    try:
        up.wait_for("the page http")
        for page in PAGES:
            with urllib.request.urlopen(f"http://127.0.0.1:{up.port}{page}") as answer:
                assert answer.status == 200
        command = [
            "curl",
            "-sf",
            "-H",
            "Accept: application/json",
            "-F",
            f"file=@{PHOTO}",
        ]
        command.append(f"http://127.0.0.1:{up.port}/predict")
        photo = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert photo["label"] == "Noodles/Pasta"
    finally:
        up.stop()
    assert (home / "models" / "food_classifier" / "config.pbtxt").is_file()
    done = subprocess.run([gourmet, "train", "digits"], capture_output=True, text=True, cwd=tmp_path)
    assert "pip install 'gourmetgram-triton[train]'" in done.stderr
