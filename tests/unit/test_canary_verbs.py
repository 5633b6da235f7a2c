"""A version is deployed to be tried beside the one that serves, then promoted or abandoned: files, verbs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from support.listener import listen
from support.onnx_network import WEIGHTS, network
from support.stopping import everything

from gourmet.cli import main
from gourmet.contracts import CANARY_PARAMETER, Canary
from gourmet.repository import read_config, versions

__all__ = ["listen"]  # the fixture
Gourmet = Callable[..., Result]
MODEL = "colours_onnx"


@pytest.fixture
def gourmet(systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gourmet:
    """Runs a verb with folders of its own, where no stack runs."""
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    for verb in ("deploy", "canary"):  # each knows the systems that there were when it was imported
        monkeypatch.delitem(sys.modules, f"gourmet.commands.{verb}", raising=False)

    def run(*words: object, status: int = 0) -> Result:
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == status, (done.output, done.exception)
        return done

    return run


@pytest.fixture(scope="module")
def first_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test leaves what it begins with, for the others."""
    return tmp_path_factory.mktemp("first") / "folder"


@pytest.fixture
def models(gourmet: Gourmet, first_folder: Path, tmp_path: Path) -> Path:
    """A repository with a model of a system, and beside it the file of another version."""
    if first_folder.exists():
        shutil.copytree(first_folder, tmp_path, dirs_exist_ok=True)
    else:
        onnx.save(network(), tmp_path / "first.onnx")
        onnx.save(network(head=2 * WEIGHTS), tmp_path / "second.onnx")
        first = ("--labels", "red,green,blue", "--weights", tmp_path / "first.onnx")
        gourmet("new", "colours", *first, "--to", tmp_path / "models")
        shutil.copytree(tmp_path, first_folder)
    return tmp_path / "models"


def deploy(models: Path, *more: str) -> tuple[object, ...]:
    return ("deploy", "colours", "--weights", models.parent / "second.onnx", "--to", models, *more)


def test_both_versions_lie_there_and_the_config_says_which_is_tried(gourmet: Gourmet, models: Path) -> None:
    before = read_config(models / MODEL)
    gourmet(*deploy(models, "--canary", "12.5%"))
    assert versions(models / MODEL) == (1, 2)
    config = read_config(models / MODEL)
    assert list(config.version_policy.specific.versions) == [1, 2]
    found = Canary.of({CANARY_PARAMETER: config.parameters[CANARY_PARAMETER].string_value})
    assert found
    assert (found.old, found.new, found.share, found.is_shadow, found.tolerance) == (
        *("1", "2"),
        *(0.125, False, 0.3),
    )
    config.ClearField("version_policy")
    del config.parameters[CANARY_PARAMETER]
    assert config == before
    listed = json.loads(gourmet("list", "--json", "--repository", models).stdout)
    tried = {(row["model"], row["version"]): row["tried"] for row in listed if row["model"] == MODEL}
    assert tried == {(MODEL, 1): "", (MODEL, 2): "canary 12.5%"}
    said = gourmet("canary", "status", "colours", "--to", models).output
    assert f"{MODEL}: version 2 is a canary beside 1, 12.5% since 20" in said


def test_an_abandoned_one_leaves_nothing(gourmet: Gourmet, models: Path) -> None:
    before = everything(models)
    gourmet(*deploy(models, "--shadow", "10%"))
    said = gourmet("canary", "abandon", "colours", "--to", models).output
    assert f"{MODEL}: version 2 is withdrawn, version 1 is the latest" in said
    assert everything(models) == before


def test_one_that_a_rollback_ends_leaves_nothing_either(gourmet: Gourmet, models: Path) -> None:
    before = everything(models)
    gourmet(*deploy(models, "--canary", "10%"))
    gourmet("rollback", MODEL, "--to", models)
    assert everything(models) == before


def test_a_promoted_one_is_as_if_it_was_deployed_and_the_way_back_is_the_same(
    gourmet: Gourmet, models: Path
) -> None:
    before = everything(models)
    gourmet(*deploy(models))
    plain = (models / MODEL / "config.pbtxt").read_bytes()
    gourmet("rollback", MODEL, "--to", models)
    gourmet(*deploy(models, "--canary", "10%"))
    assert (models / MODEL / "config.pbtxt").read_bytes() != plain
    said = gourmet("canary", "promote", "colours", "--to", models).output
    assert f"{MODEL}: version 2 serves alone, version 1 is kept" in said
    assert (models / MODEL / "config.pbtxt").read_bytes() == plain
    gourmet("rollback", MODEL, "--to", models)
    assert everything(models) == before


def test_while_one_is_tried_no_other_is_deployed_and_none_removed(gourmet: Gourmet, models: Path) -> None:
    gourmet(*deploy(models, "--canary", "10%"))
    before = everything(models)
    said = gourmet(*deploy(models), status=1).output
    assert f"version 2 of {MODEL} is tried: first `gourmet canary promote {MODEL}`, or `abandon`" in said
    said = gourmet("remove", f"{MODEL}/1", "--yes", "--repository", models, status=2).output
    assert "is tried: first end that with `gourmet canary`" in said
    assert everything(models) == before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--canary", "10%", "--shadow", "10%"], "give one of --canary, --shadow and --version"),
        (["--canary", "10%", "--version", "1"], "give one of --canary, --shadow and --version"),
        (["--canary", "0.1"], "is not a share above 0: write it like 10%"),
        (["--shadow", "101%"], "is not a share above 0: write it like 10%"),
    ],
)
def test_what_cannot_be_meant_is_said(gourmet: Gourmet, models: Path, more: list[str], says: str) -> None:
    before = everything(models)
    assert says in " ".join(gourmet(*deploy(models, *more), status=2).output.split())
    assert everything(models) == before


def test_a_version_that_takes_something_else_cannot_be_tried(gourmet: Gourmet, models: Path) -> None:
    before = everything(models)
    other = network()
    other.graph.input[0].name = other.graph.node[0].input[0] = "another"
    onnx.save(other, models.parent / "second.onnx")
    said = gourmet(*deploy(models, "--canary", "10%"), status=1).output
    assert f"{MODEL} has other inputs or outputs: deploy it without --canary" in said
    assert everything(models) == before


def test_what_is_not_tried_has_no_end(gourmet: Gourmet, models: Path) -> None:
    said = gourmet("canary", "promote", MODEL, "--to", models, status=2).output
    assert f"no version of {MODEL} is tried" in said
