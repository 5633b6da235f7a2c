"""What a user makes lies in a folder of the user's; what is broken there keeps nothing else from working."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from support.fake_classifier import FakeClassifier

from app import create_app
from app.web.settings import Settings
from gourmet.cli import main
from gourmet.commands.options import found_repositories, repositories_option, to_option
from gourmet.doctor import Examined, systems
from gourmet.repository.models import DEFAULT_REPOSITORY, link_models, model_names, models_in, repository_of
from gourmet.served.files import home
from gourmet.stack import preflight
from gourmet.systems import registry

HTML = {"Accept": "text/html"}


@pytest.fixture(autouse=True)
def own(systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, as in a process that was started without GOURMET_SYSTEMS."""
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path))  # whose systems/ the fixture forgets afterwards
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    monkeypatch.delenv("GOURMET_SYSTEMS")
    return tmp_path


def new(name: str = "flowers") -> Result:
    done = CliRunner().invoke(main, ["new", name, "--labels", "rose,tulip"])
    assert done.exit_code == 0, done.output
    return done


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
    def status() -> str:
        command = ["git", "-C", str(Path(__file__).parents[2]), "status", "--porcelain"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    before = status()
    done = new()
    assert status() == before
    assert registry.folder_of("flowers") == own / "systems" / "flowers"
    assert "gourmet deploy flowers --format onnx\n" in done.output, "it needs no --to"


# Python itself may lie where another user cannot read: what the verb needs is imported before.
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


def test_an_unwritable_folder_is_reported_with_the_setting_for_another(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "file").touch()
    monkeypatch.setenv("GOURMET_HOME", str(own / "file"))
    done = CliRunner().invoke(main, ["new", "flowers", "--labels", "rose,tulip"])
    assert (done.exit_code, "GOURMET_HOME names another" in done.output) == (2, True), done.output


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


def test_a_model_in_the_users_folder_replaces_the_shipped_one_wherever_both_are_served(
    own: Path, tmp_path: Path
) -> None:
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
def test_a_broken_system_is_reported_by_doctor_and_the_others_work(
    reason: str, own: Path, subject: Examined
) -> None:
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
