"""The wheel in an empty environment, outside any checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.up import Up

from gourmet.systems.food11.contract import SAMPLES

ROOT = Path(__file__).parents[2]
PHOTO = SAMPLES / "06_spaghetti.jpg"
PAGES = ("/", "/compare", "/digits", "/translate", "/caption", "/lab", "/api/docs")


@pytest.mark.promise(
    "README: `pip install gourmetgram_triton-*.whl` (made by `pip wheel --no-deps .`) brings `gourmet`"
)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_installed_wheel_shows_its_pages_and_classifies_a_photo(tmp_path: Path) -> None:
    checkout, environment = tmp_path / "checkout", tmp_path / "environment"
    subprocess.run(["git", "clone", "-q", "--local", ROOT, checkout], check=True)
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, checkout]
    subprocess.run([*build, "--config-settings=--build-option=--compression=stored"], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    pins = ROOT / "requirements" / "constraints.txt"
    # What nobody imports is never compiled.
    into = [*pip, "--python", environment / "bin" / "python", "install", "-q", "--no-compile"]
    subprocess.run([*into, "-c", pins, wheel], check=True)
    home, gourmet = tmp_path / "home", str(environment / "bin" / "gourmet")
    env = {"GOURMET_HOME": str(home), "GOURMET_KEYS": str(tmp_path / "keys")}
    with Up(tmp=tmp_path, env=env, program=gourmet) as up:
        for page in PAGES:
            with urllib.request.urlopen(f"http://127.0.0.1:{up.port}{page}") as answer:
                assert answer.status == 200
        command = ["curl", "-sf", "-F", f"file=@{PHOTO}", f"http://127.0.0.1:{up.port}/predict"]
        photo = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert photo["label"] == "Noodles/Pasta"
        before = installed_files(environment)
        deployed, withdrawn = taught(gourmet, tmp_path, os.environ | env)
        (new,), (old,) = deployed, withdrawn
        assert (new["model"], new["version"], new["serves"]) == ("food_classifier_onnx", 2, True)
        assert all(check["passed"] for check in new["gate"])
        assert (old["withdrawn"], old["version"], old["serves"]) == (2, 1, True)
        assert installed_files(environment) == before
    own = {path.name for path in (home / "models").iterdir() if path.is_dir()}
    assert own == {"food_classifier_onnx"}, "the other models are served from the package"
    done = subprocess.run([gourmet, "train", "digits"], capture_output=True, text=True, cwd=tmp_path)
    assert "pip install 'gourmetgram-triton[train]'" in done.stderr


def installed_files(environment: Path) -> dict[str, int]:
    files = (path for path in environment.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): path.stat().st_mtime_ns for path in files}


def taught(gourmet: str, folder: Path, env: dict[str, str]) -> tuple[Any, Any]:
    """Teach the food network a few photos, deploy it and go back; return what the last two print as JSON."""
    pictures = {SAMPLES / "02_cupcakes.jpg": "Dessert", SAMPLES / "09_green-soup.jpg": "Soup"}
    pictures |= {SAMPLES / "09_watercress-soup.jpg": "Soup", SAMPLES / "08_grilled-fish.jpg": "Seafood"}
    labels = {"bread": "Bread", "eggs": "Egg", "noodles": "Noodles-Pasta", "rice": "Rice", "soup": "Soup"}
    pictures |= {ROOT / "tests" / "drawings" / f"{name}.jpg": label for name, label in labels.items()}
    for picture, label in pictures.items():
        (folder / "photos" / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, folder / "photos" / label)

    def run(*words: str) -> str:
        done = subprocess.run(
            [gourmet, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("learn-more", "food11", "photos")
    learned = ("--weights", "runs/food11-more/learned.npz", "--format", "food_classifier_onnx")
    deployed = run("deploy", "food11", *learned, "--json")
    return json.loads(deployed), json.loads(run("rollback", "food_classifier_onnx", "--json"))
