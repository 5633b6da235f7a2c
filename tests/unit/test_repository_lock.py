"""Two verbs that change one repository: the second one waits, says so, and loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gourmet.repository import RepositoryError
from gourmet.repository.lock import changing
from gourmet.runtime.files import written_aside

GOURMET = Path(sys.executable).with_name("gourmet")
# Takes the lock, says so, and holds it until a line comes.
HOLDER = """
import sys
from pathlib import Path
from gourmet.repository.lock import changing
with changing(Path(sys.argv[1]), print):
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


def test_the_second_waits_says_so_and_finds_what_the_first_did(tmp_path: Path) -> None:
    first = holder(tmp_path)
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        threading.Thread(target=first.communicate, args=("\n",)).start()

    with changing(tmp_path, say):
        assert (tmp_path / "of the first").exists()
    assert said == [f"another gourmet is at work in {tmp_path}: waiting until it has ended"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["of the first"], "the lock leaves no file"


def test_who_waits_too_long_is_told_and_a_killed_holder_keeps_nobody(tmp_path: Path) -> None:
    first = holder(tmp_path)
    with pytest.raises(RepositoryError, match="is still at work in"), changing(tmp_path, print, 0):
        pass
    first.kill()
    first.communicate()
    with changing(tmp_path, pytest.fail, 0):
        pass


def test_a_repository_that_was_made_for_nothing_is_not_left_and_others_wait_for_the_next(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "of" / "models"
    order: list[str] = []

    def other() -> None:
        with changing(repository, order.append):
            order.append("second")
            (repository / "model").mkdir()

    thread = threading.Thread(target=other)

    def first() -> None:
        thread.start()
        while not order:
            thread.join(0.01)
        order.append("first")
        raise OSError(28, "No space left on device")

    with pytest.raises(RepositoryError, match="No space left"), changing(repository, pytest.fail):
        first()
    thread.join()
    assert order[1:] == ["first", "second"]
    assert (repository / "model").is_dir()
    with changing(tmp_path / "nothing", pytest.fail):
        pass
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
def test_two_deployers_at_once_leave_a_whole_version_each(tmp_path: Path) -> None:
    """It was one model without a version, and two errors."""
    network = ["--batch_size", "2", "--config", "torchvision:squeezenet1_1"]
    both = []
    for number in (1, 2):
        version = ["--triton-model-version", str(number), "--save-dir", str(tmp_path / "models")]
        command = [str(GOURMET), "deployer", "--ts-trace", *version, *network]
        both.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    model = tmp_path / "models" / "model"
    assert sorted(path.name for path in model.iterdir()) == ["1", "2", "config.pbtxt"]
    for each in ("1", "2"):
        assert json.loads((model / each / "manifest.json").read_text())["file"] == "model.pt"


def test_a_file_that_is_written_aside_is_not_left_by_sigterm(tmp_path: Path) -> None:
    def write(aside: Path) -> None:
        aside.write_text("half")
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit), written_aside(tmp_path / "config.pbtxt") as aside:
        write(aside)
    assert not any(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
