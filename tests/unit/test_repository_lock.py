"""Two verbs that change one repository: the second one waits, says so, and loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gourmet.repository import RepositoryError
from gourmet.repository.lock import changing

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


def test_a_repository_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RepositoryError, match="file/models cannot be written"),
        changing(tmp_path / "file" / "models", pytest.fail),
    ):
        pass


@pytest.mark.slow
def test_two_deployers_at_once_leave_a_whole_version_each(tmp_path: Path) -> None:
    """It was one model without a version, and two errors."""
    network = ["--batch_size", "2", "--config", "torchvision:squeezenet1_1"]
    both = []
    for number in (1, 2):
        version = ["--triton-model-version", str(number), "--save-dir", str(tmp_path / "models")]
        command = [str(GOURMET), "deployer", "--ts-trace", *version, *network]
        both.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    lines = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], lines
    model = tmp_path / "models" / "model"
    assert sorted(path.name for path in model.iterdir()) == ["1", "2", "config.pbtxt"]
    for each in ("1", "2"):
        assert json.loads((model / each / "manifest.json").read_text())["file"] == "model.pt"
