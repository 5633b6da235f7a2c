"""What a user makes, from new to nothing: it lies in a folder of the user's, is listed, and removed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import onnx
import pytest
from click.testing import CliRunner
from support.cli import gourmet, said
from support.fake_classifier import FakeClassifier
from support.life import git_status
from support.onnx_network import network
from support.stopping import everything, files

from app import create_app
from app.web.settings import Settings
from gourmet.commands.options import found_repositories, repositories_option, to_option
from gourmet.doctor import Examined, systems
from gourmet.repository.models import DEFAULT_REPOSITORY, link_models, model_names, models_in, repository_of
from gourmet.served import manifest
from gourmet.served.files import home
from gourmet.stack import preflight
from gourmet.systems import registry

HTML = {"Accept": "text/html"}


pytestmark = pytest.mark.usefixtures("own")


def new(name: str = "flowers") -> str:
    return said("new", name, "--labels", "rose,tulip")


def test_the_folder_is_the_platforms_unless_it_is_named(monkeypatch: pytest.MonkeyPatch, own: Path) -> None:
    assert home() == own
    monkeypatch.setenv("GOURMET_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert home() == Path("/data/gourmet")
    monkeypatch.setenv("XDG_DATA_HOME", "relative, which the convention says to pass over")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert home() == Path("/home/somebody/.local/share/gourmet")
    monkeypatch.delenv("HOME")
    assert home().is_absolute(), "a relative path could lead to somebody else's code"


def test_new_leaves_the_checkout_as_it_is(own: Path) -> None:
    before = git_status()
    output = new()
    assert git_status() == before
    assert registry.folder_of("flowers") == own / "systems" / "flowers"
    assert "gourmet deploy flowers --format onnx\n" in output, "it needs no --to"


AS_ANOTHER = """
import os
import gourmet.commands.new, gourmet.repository.deploy, gourmet.systems.described_pictures
from gourmet.training.files import torchvision
from gourmet.cli import main
torchvision()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
main(["new", "flowers", "--labels", "rose,tulip"])
"""


@pytest.mark.slow
def test_a_user_without_write_access_to_the_clone_can_add_a_system() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can try as another user")
    if shut := [folder for folder in Path(__file__).parents if not folder.stat().st_mode & stat.S_IXOTH]:
        pytest.skip(f"another user can read nothing in {shut[0]}")
    with tempfile.TemporaryDirectory(prefix="gourmet-tests-") as folder:
        os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [sys.executable, "-P", "-c", AS_ANOTHER],
            env={"HOME": folder, "PATH": os.defpath},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        made = Path(folder, ".local/share/gourmet/systems/flowers")
        assert (made / "system.toml").stat().st_uid == 65534


def test_an_unwritable_folder_names_the_setting(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "file").touch()
    monkeypatch.setenv("GOURMET_HOME", str(own / "file"))
    assert "GOURMET_HOME names another" in said("new", "flowers", "--labels", "a,b", status=2)


@pytest.mark.parametrize(
    ("name", "mine"),
    [("flowers", True), ("food11", False), ("food_classifier", False), ("flowers_onnx", True)],
)
def test_verbs_use_the_repository_of_their_model(name: str, mine: bool, own: Path) -> None:
    @click.command()
    @click.argument("model")
    @to_option
    def verb(model: str, models: Path) -> None:
        click.echo(models)

    output = CliRunner().invoke(verb, [name]).output.strip()
    assert Path(output) == (own / "models" if mine else DEFAULT_REPOSITORY)
    assert CliRunner().invoke(verb, [name, "--to", "here"]).output.strip() == "here"


def test_a_stack_serves_the_users_repository_beside_the_checkouts_though_it_is_empty(own: Path) -> None:
    @click.command()
    @repositories_option()
    def verb(repositories: tuple[Path, ...]) -> None:
        click.echo(" ".join(map(str, repositories)))

    assert found_repositories() == (DEFAULT_REPOSITORY,)
    assert CliRunner().invoke(verb).output.split() == [str(DEFAULT_REPOSITORY), str(own / "models")]
    assert found_repositories() == (DEFAULT_REPOSITORY, own / "models")
    assert "digits" in preflight.check_repositories(found_repositories())


def test_a_model_in_the_users_folder_replaces_the_shipped_one_everywhere(own: Path, tmp_path: Path) -> None:
    mine, view = own / "models" / "digits", tmp_path / "view"
    link_models(view, DEFAULT_REPOSITORY)
    shutil.copytree(DEFAULT_REPOSITORY / "digits", mine)
    both = [path for path in models_in([DEFAULT_REPOSITORY, own / "models"]) if path.name == "digits"]
    assert both == [mine.resolve()]
    assert DEFAULT_REPOSITORY / "digits" in models_in([DEFAULT_REPOSITORY])
    assert repository_of("digits") == own / "models"
    link_models(view, DEFAULT_REPOSITORY)
    names = {path.name for path in view.iterdir()}
    assert names == {*model_names(DEFAULT_REPOSITORY)} - {"digits"}
    shutil.rmtree(mine)
    link_models(view, DEFAULT_REPOSITORY)
    assert (view / "digits").resolve() == DEFAULT_REPOSITORY / "digits"
    assert repository_of("digits") == DEFAULT_REPOSITORY


def of_no_title(folder: Path) -> None:
    path = folder / "system.toml"
    path.write_text(path.read_text().replace("title =", "titel ="))


BREAKS: dict[str, Callable[[Path], None]] = {
    "sample.jpg is missing": lambda folder: (folder / "sample.jpg").unlink(),
    "has no system.toml": lambda folder: (folder / "system.toml").unlink(),
    "lacks 'title'": of_no_title,
}


@pytest.mark.parametrize("reason", BREAKS)
def test_a_broken_system_is_reported_and_others_work(reason: str, own: Path, subject: Examined) -> None:
    new()
    new("stones")
    registry.load.cache_clear()
    BREAKS[reason](own / "systems" / "flowers")
    assert reason in registry.broken()["flowers"]
    assert set(registry.load_all()) == {"captioner", "digits", "food11", "stones", "translator"}

    (failure,) = [str(system) for system in systems(subject) if system.level == "fail"]
    assert "the system flowers is broken" in failure
    assert reason in failure

    assert "flowers" not in Settings.from_env({"FLOWERS_MODEL_NAME": "flowers_onnx"}).models
    browser = create_app(Settings(), FakeClassifier()).test_client()
    for path in ("/", "/compare", "/digits", "/translate", "/classify/stones"):
        page = browser.get(path, headers=HTML)
        assert (page.status_code, "flowers" in page.text.lower()) == (200, False), path
    assert browser.get("/classify/flowers", headers=HTML).status_code == 404


# From new to nothing
@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's ONNX file, taken in once by `gourmet new`; each test has a copy of what it made."""
    base = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_HOME", str(base))
        patch.setenv("GOURMET_KEYS", str(base / "keys"))
        onnx.save(network(), base / "best.onnx")
        said("new", "flowers", "--labels", "daisy,rose,tulip", "--weights", base / "best.onnx")
    return base


@pytest.fixture
def flowers(made: Path, own: Path) -> Path:
    for folder in ("systems", "models"):
        shutil.copytree(made / folder, own / folder, dirs_exist_ok=True)
    return own


def listed() -> dict[str, dict[str, object]]:
    rows = json.loads(said("list", "--json"))
    return {f"{row['system']} {row['model']} {row['version']}": row for row in rows}


def test_list_shows_when_and_by_which_verb_a_model_was_deployed(flowers: Path) -> None:
    rows = listed()
    row = rows["flowers flowers_onnx 1"]
    at, by = (
        manifest.read_manifest(flowers / "models/flowers_onnx/1")["deployed"][key] for key in ("at", "by")
    )
    assert (row["deployed"], row["by"], row["state"]) == (at, by, "")
    size = sum(path.stat().st_size for path in (flowers / "models/flowers_onnx/1").iterdir())
    assert (row["bytes"], row["requests"]) == (size, None)
    assert {"food11 food_classifier 1", "translator translator 1", "digits digits 1"} <= rows.keys()
    text = said("list")
    (line,) = [line.split()[:3] for line in text.splitlines() if "flowers" in line]
    assert line == ["flowers", "flowers_onnx", "1"]


def test_incomplete_systems_are_listed_with_the_reason(flowers: Path) -> None:
    (flowers / "systems/flowers/sample.jpg").unlink()
    (flowers / "models/flowers_onnx/config.pbtxt").unlink()
    said("new", "stones", "--labels", "a,b")
    registry.load.cache_clear()
    rows = listed()
    assert "sample.jpg is missing" in str(rows["flowers  None"]["reason"])
    assert "config.pbtxt" in str(rows["flowers flowers_onnx None"]["reason"])
    assert rows["stones  None"]["state"] == "no model"
    assert "flowers is broken: " in said("list")


def test_remove_deletes_only_files_that_new_made(flowers: Path) -> None:
    said("new", "stones", "--labels", "a,b")
    notes = flowers / "systems" / "flowers" / "notes.txt"
    notes.write_text("mine")
    (flowers / "models/flowers_onnx/.withdrawn-2").mkdir()
    refused = gourmet("remove", "flowers", input="n\n")
    assert (refused.exit_code, notes.with_name("system.toml").exists()) == (1, True)
    for path in (notes.with_name("sample.jpg"), flowers / "models/flowers_onnx/1"):
        assert f"to be removed: {path}\n" in refused.output, "it says what, before it asks"
    output = said("remove", "flowers", "--yes")
    assert f"kept {notes.parent}: it has files that gourmet did not write: notes.txt" in output
    stones = {f"systems/stones/{file}" for file in ("system.toml", "sample.jpg", "MODEL_CARD.md")}
    assert files(flowers) == {"systems/flowers/notes.txt", *stones}
    assert not everything(flowers / "models")
    assert "flowers" not in said("list"), "a folder with notes is not half a system"
    said("remove", "stones", "--yes")
    assert list((flowers / "systems").iterdir()) == [notes.parent]


@pytest.mark.parametrize("gone", ["sample.jpg", "system.toml", "MODEL_CARD.md"])
def test_half_a_system_can_be_removed(gone: str, flowers: Path) -> None:
    (flowers / "systems" / "flowers" / gone).unlink()
    said("remove", "flowers", "--yes")
    assert not files(flowers)


def test_a_model_or_a_version_can_be_removed_alone(flowers: Path) -> None:
    model = flowers / "models" / "flowers_onnx"
    shutil.copytree(model / "1", model / "2")
    shutil.copytree(model / "1", model / ".old-1")  # of a verb that was killed
    assert "is the latest version" in said("remove", "flowers_onnx/2", "--yes", status=2)
    assert "has no version '7', but 1, 2" in said("remove", "flowers/7", "--yes", status=2)
    assert "leaves" not in said("remove", "flowers_onnx/1", "--yes")
    assert sorted(path.name for path in model.iterdir()) == ["2", "config.pbtxt", "labels.txt"]
    said("remove", "flowers_onnx", "--yes")
    assert not model.exists()
    assert listed()["flowers  None"]["state"] == "no model"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("food11", "food11 came as code, not by `gourmet new`"),
        ("food_classifier/1", "1 is the latest version of food_classifier"),
        ("translator/1", "name one of its models: translator, translator_bls, translator_stream"),
        ("mine", "mine/1 has no manifest.json, so gourmet did not deploy it: remove it by hand"),
        ("nobody", "'nobody' is neither a system nor a model"),
        ("..", "'..' is neither a system nor a model"),
        ("flowers/../1", "has no version '../1'"),
    ],
)
def test_remove_refuses_files_that_gourmet_did_not_make(name: str, complaint: str, flowers: Path) -> None:
    (flowers / "models/mine/1").mkdir(parents=True)
    (flowers / "models/mine/config.pbtxt").touch()
    before, shipped = everything(flowers), sorted(DEFAULT_REPOSITORY.rglob("*"))
    done = gourmet("remove", name, "--yes")
    assert (done.exit_code != 0, complaint in done.output) == (True, True), done.output
    assert (everything(flowers), sorted(DEFAULT_REPOSITORY.rglob("*"))) == (before, shipped)
