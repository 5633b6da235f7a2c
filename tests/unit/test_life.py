"""A system from new to nothing: listed and removed, and what lies beside it stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from support.onnx_network import network
from support.stopping import everything, files

from gourmet.cli import main
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served import manifest
from gourmet.systems import registry


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's ONNX file, taken in once by `gourmet new`; each test has a copy of what it made."""
    base = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_HOME", str(base))
        patch.setenv("GOURMET_KEYS", str(base / "keys"))
        onnx.save(network(), base / "best.onnx")
        run("new", "flowers", "--labels", "daisy,rose,tulip", "--weights", base / "best.onnx")
    return base


def run(*words: object, status: int = 0) -> Result:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == status, done.output
    return done


@pytest.fixture(autouse=True)
def own(made: Path, systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("systems", "models"):
        shutil.copytree(made / folder, tmp_path / folder, dirs_exist_ok=True)
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path))
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    monkeypatch.delenv("GOURMET_SYSTEMS")
    return tmp_path


def listed() -> dict[str, dict[str, object]]:
    rows = json.loads(run("list", "--json").output)
    return {f"{row['system']} {row['model']} {row['version']}": row for row in rows}


def test_list_shows_when_and_by_which_verb_a_model_was_deployed(own: Path) -> None:
    rows = listed()
    row = rows["flowers flowers_onnx 1"]
    at, by = (manifest.read_manifest(own / "models/flowers_onnx/1")["deployed"][key] for key in ("at", "by"))
    assert (row["deployed"], row["by"], row["state"]) == (at, by, "")
    size = sum(path.stat().st_size for path in (own / "models/flowers_onnx/1").iterdir())
    assert (row["bytes"], row["requests"]) == (size, None)
    assert {"food11 food_classifier 1", "translator translator 1", "digits digits 1"} <= rows.keys()
    text = run("list").output
    assert [line.split()[:3] for line in text.splitlines() if "flowers" in line] == [
        ["flowers", "flowers_onnx", "1"]
    ]


def test_incomplete_systems_are_listed_with_the_reason(own: Path) -> None:
    (own / "systems/flowers/sample.jpg").unlink()
    (own / "models/flowers_onnx/config.pbtxt").unlink()
    run("new", "stones", "--labels", "a,b")
    registry.load.cache_clear()
    rows = listed()
    assert "sample.jpg is missing" in str(rows["flowers  None"]["reason"])
    assert "config.pbtxt" in str(rows["flowers flowers_onnx None"]["reason"])
    assert rows["stones  None"]["state"] == "no model"
    assert "flowers is broken: " in run("list").output


def test_remove_deletes_only_files_that_new_made(own: Path) -> None:
    run("new", "stones", "--labels", "a,b")
    notes = own / "systems" / "flowers" / "notes.txt"
    notes.write_text("mine")
    (own / "models/flowers_onnx/.withdrawn-2").mkdir()
    refused = CliRunner().invoke(main, ["remove", "flowers"], input="n\n")
    assert (refused.exit_code, notes.with_name("system.toml").exists()) == (1, True)
    for path in (notes.with_name("sample.jpg"), own / "models/flowers_onnx/1"):
        assert f"to be removed: {path}\n" in refused.output, "it says what, before it asks"
    output = run("remove", "flowers", "--yes").output
    assert f"kept {notes.parent}: it has files that gourmet did not write: notes.txt" in output
    assert files(own) == {
        "systems/flowers/notes.txt",
        *(f"systems/stones/{file}" for file in ("system.toml", "sample.jpg", "MODEL_CARD.md")),
    }
    assert not everything(own / "models")
    assert "flowers" not in run("list").output, "a folder with notes is not half a system"
    run("remove", "stones", "--yes")
    assert list((own / "systems").iterdir()) == [notes.parent]


@pytest.mark.parametrize("gone", ["sample.jpg", "system.toml", "MODEL_CARD.md"])
def test_half_a_system_can_be_removed(gone: str, own: Path) -> None:
    (own / "systems" / "flowers" / gone).unlink()
    run("remove", "flowers", "--yes")
    assert not files(own)


def test_a_model_or_a_version_can_be_removed_alone(own: Path) -> None:
    model = own / "models" / "flowers_onnx"
    shutil.copytree(model / "1", model / "2")
    shutil.copytree(model / "1", model / ".old-1")  # of a verb that was killed
    assert "is the latest version" in run("remove", "flowers_onnx/2", "--yes", status=2).output
    assert "has no version '7', but 1, 2" in run("remove", "flowers/7", "--yes", status=2).output
    assert "leaves" not in run("remove", "flowers_onnx/1", "--yes").output
    assert sorted(path.name for path in model.iterdir()) == ["2", "config.pbtxt", "labels.txt"]
    run("remove", "flowers_onnx", "--yes")
    assert not model.exists()
    assert listed()["flowers  None"]["state"] == "no model"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("food11", "food11 came as code, not by `gourmet new`"),
        ("food_classifier", "food11 came as code, not by `gourmet new`"),
        ("food_classifier/1", "1 is the latest version of food_classifier"),
        ("translator/1", "name one of its models: translator, translator_bls, translator_stream"),
        ("onnx-model", "onnx-model came as code"),
        ("mine", "mine/1 has no manifest.json, so gourmet did not deploy it: remove it by hand"),
        ("nobody", "'nobody' is neither a system nor a model"),
        ("..", "'..' is neither a system nor a model"),
        ("", "'' is neither a system nor a model"),
        ("../models", "'..' is neither a system nor a model"),
        ("flowers/../1", "has no version '../1'"),
    ],
)
def test_remove_refuses_files_that_gourmet_did_not_make(name: str, complaint: str, own: Path) -> None:
    (own / "models/mine/1").mkdir(parents=True)
    (own / "models/mine/config.pbtxt").touch()
    before, shipped = everything(own), sorted(DEFAULT_REPOSITORY.rglob("*"))
    done = CliRunner().invoke(main, ["remove", name, "--yes"])
    assert (done.exit_code != 0, complaint in done.output) == (True, True), done.output
    assert (everything(own), sorted(DEFAULT_REPOSITORY.rglob("*"))) == (before, shipped)
