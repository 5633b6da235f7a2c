"""Folders of running programs: nobody else's, and gone with the next start where a program was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.eventually import eventually

from gourmet.served.files import RunFolder, write_whole, written_aside

KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from gourmet.served.files import RunFolder
made = RunFolder("own-", Path(sys.argv[1]))
Path(f"{made.path}-region").touch()
if sys.argv[2:]:
    child = subprocess.Popen(["sleep", "1000"], pass_fds=[made.lock], stdout=subprocess.DEVNULL)
    Path(sys.argv[2]).write_text(str(child.pid))
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(within: Path, *pid_of_child: Path) -> Path:
    """The folder of a program that was killed. With a file for its id, a child of it lives on."""
    command = [sys.executable, "-P", "-c", KILLED, within, *pid_of_child]
    return Path(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip())


def test_a_run_folder_is_private_and_removed_when_closed(tmp_path: Path) -> None:
    made = RunFolder("own-", tmp_path)
    assert made.path.stat().st_mode & 0o777 == 0o700
    Path(f"{made.path}-region").touch()
    made.close()
    made.close()
    assert not list(tmp_path.iterdir())


def test_the_next_start_removes_the_folder_of_a_killed_program(tmp_path: Path) -> None:
    left = killed(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {left.name, f"{left.name}-region"}
    made = RunFolder("own-", tmp_path)
    assert list(tmp_path.iterdir()) == [made.path]
    made.close()


def test_the_folder_of_a_running_program_stays(tmp_path: Path) -> None:
    running = RunFolder("own-", tmp_path)
    Path(f"{running.path}-region").touch()
    code = "import sys; from pathlib import Path; from gourmet.served.files import RunFolder\n"
    code += "RunFolder('own-', Path(sys.argv[1])).close()"
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {running.path.name, f"{running.path.name}-region"}
    running.close()


def test_a_run_folder_stays_while_a_child_of_the_killed_program_runs(tmp_path: Path) -> None:
    folder = tmp_path / "folders"
    folder.mkdir()
    left = killed(folder, tmp_path / "child")
    RunFolder("own-", folder).close()
    assert left.is_dir()
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)

    def is_empty() -> bool:
        RunFolder("own-", folder).close()
        return not list(folder.iterdir())

    eventually(is_empty)


def test_a_folder_without_a_lock_stays(tmp_path: Path) -> None:
    (killed(tmp_path) / "lock").unlink()
    before = sorted(tmp_path.rglob("*"))
    RunFolder("own-", tmp_path).close()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_write_that_fails_leaves_the_file_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    write_whole(path, "before")
    with pytest.raises(ZeroDivisionError), written_aside(path) as aside:
        aside.write_text(str(1 / 0))
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(ValueError, match="half"), written_aside(path) as aside:
        raise ValueError(f"half of it is in {aside.write_text('half')}")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("notes.txt", "before")]
