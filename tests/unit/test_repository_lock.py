"""Two verbs that change one repository: the second one waits, says so, and loses nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gourmet.repository.lock import UNDO_FILE, all_or_nothing, changing, tidied, undo
from gourmet.repository.models import RepositoryError

GOURMET = Path(sys.executable).with_name("gourmet")
# Takes the lock, says so, and holds it until a line comes.
HOLDER = """
import sys
from functools import partial
from pathlib import Path
from gourmet.repository.lock import changing
with changing(Path(sys.argv[1]), partial(print, flush=True)):
    print("has it", flush=True)
    sys.stdin.readline()
    Path(sys.argv[1], "of the first").touch()
"""


def holder(repository: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", HOLDER, str(repository)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "has it\n"
    return process


@pytest.mark.promise("models: Verbs that change one repository wait for each other")
def test_a_second_writer_waits_and_sees_the_first_one_s_change(tmp_path: Path) -> None:
    first = holder(tmp_path)
    lines: list[str] = []

    def say(words: str) -> None:
        lines.append(words)
        threading.Thread(target=first.communicate, args=("\n",)).start()

    with changing(tmp_path, say):
        assert (tmp_path / "of the first").exists()
    assert lines == [f"another gourmet changes {tmp_path}: waiting until it has ended"]


def test_a_lock_times_out_and_a_killed_holder_frees_it(tmp_path: Path) -> None:
    first = holder(tmp_path)
    with pytest.raises(RepositoryError, match="still changes"), changing(tmp_path, print, 0):
        pass
    first.kill()
    first.communicate()
    with changing(tmp_path, pytest.fail, 0):
        pass


def test_the_one_that_waits_gets_a_new_repository_whose_first_verb_wrote_nothing(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    with changing(repository, pytest.fail):
        second = subprocess.Popen(
            [sys.executable, "-P", "-c", HOLDER, str(repository)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert second.stdout
        assert "waiting until it has ended" in second.stdout.readline()
    assert second.communicate("\n")[0] == "has it\n"
    assert (repository / "of the first").exists()


def test_a_repository_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RepositoryError, match="file/models cannot be written"),
        changing(tmp_path / "file" / "models", pytest.fail),
    ):
        pass


def test_a_change_that_is_interrupted_is_put_back_and_a_whole_one_stays(tmp_path: Path) -> None:
    model = tmp_path / "m"
    for folder, text in (("1", "one"), ("next", "two")):
        (model / folder).mkdir(parents=True)
        (model / folder / "weights").write_text(text)
    (model / "config.pbtxt").write_text("old")
    renames = [(model / "1", model / "before"), (model / "next", model / "1")]
    texts = {model / "config.pbtxt": "new", model / "labels.txt": "rose"}
    seen = []

    def interrupted() -> None:
        with all_or_nothing([model], renames, texts):
            seen.append(((tmp_path / UNDO_FILE).exists(), (model / "1" / "weights").read_text()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [(True, "two")], "there is what the next verb needs to put it back"
    assert (model / "1" / "weights").read_text() == "one"
    assert (model / "next" / "weights").read_text() == "two"
    assert (model / "config.pbtxt").read_text() == "old"
    assert not (model / "labels.txt").exists()
    with all_or_nothing([model], renames, texts):
        pass
    assert not (tmp_path / UNDO_FILE).exists()
    assert undo(tmp_path) == []
    assert (model / "1" / "weights").read_text() == "two"
    assert (model / "labels.txt").read_text() == "rose"


def test_what_a_killed_verb_left_is_removed_and_a_link_without_its_target(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (target / "1").mkdir(parents=True)
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / ".next.77" / "1").mkdir(parents=True)
    (model / ".old-2").symlink_to(target)
    assert tidied(model) == (1,)
    assert [path.name for path in model.iterdir()] == ["1"]
    assert (target / "1").is_dir()
