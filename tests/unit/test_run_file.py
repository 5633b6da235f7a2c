"""Running programs: verbs find the stack of this machine, and folders of killed ones are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.eventually import eventually
from support.no_stack import no_stack, runs, stack

from gourmet.commands.bench import measuring
from gourmet.commands.options import found_repositories, port_options, serving_url, url_option
from gourmet.commands.perf_analyzer import _address_for
from gourmet.errors import GourmetError, UsageError
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served.files import RunFolder, write_whole, written_aside
from gourmet.stack import run_file
from gourmet.stack.run_file import running_stack

__all__ = ["no_stack"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gourmet"


def asked(command: Any, *arguments: str, **env: str) -> str:
    done = CliRunner().invoke(command, arguments, env=env, catch_exceptions=False)
    return done.output.strip()


@click.command()
@url_option()
def verb(url: str) -> None:
    click.echo(url)


@click.command()
@measuring
def bench_verb(target: Any, **_rest: Any) -> None:
    click.echo(f"{target.url} {target.grpc_url} {target.app_url}")


@click.command()
@port_options(found=True)
def doctor_verb(**ports: int) -> None:
    click.echo(" ".join(map(str, ports.values())))


def test_a_verb_finds_the_stack_that_runs_and_no_other() -> None:
    assert asked(verb) == "localhost:8000"
    with runs(stack()):
        assert running_stack() == stack()
        assert asked(verb) == "127.0.0.1:9100"
        assert asked(verb, TRITON_SERVER_URL="http://there:8000/") == "there:8000"
        assert asked(verb, "--url", "here:8000", TRITON_SERVER_URL="there:8000") == "here:8000"
    assert running_stack() is None


def test_bench_and_doctor_find_every_port_of_it() -> None:
    assert asked(bench_verb) == "localhost:8000 localhost:8001 localhost:5000"
    assert asked(doctor_verb) == "5000 8000 8001 8002"
    with runs(stack()):
        assert asked(bench_verb) == "127.0.0.1:9100 127.0.0.1:9101 127.0.0.1:9103"
        assert asked(bench_verb, "--url", "localhost:9100").split()[1] == "127.0.0.1:9101"
        assert asked(bench_verb, "--url", "there:9100") == "there:9100 there:8001 there:5000"
        assert asked(doctor_verb) == "9103 9100 9101 9102"
        assert asked(doctor_verb, "--port", "1") == "1 9100 9101 9102"


def test_verbs_use_the_repositories_of_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path))
    with runs(stack(repositories=["/models", "/more"])):
        assert found_repositories() == (Path("/models"), Path("/more"))
    assert found_repositories() == (DEFAULT_REPOSITORY,)


def test_a_version_is_switched_in_the_stack_that_serves_its_repository(tmp_path: Path) -> None:
    with runs(stack(repositories=[str(tmp_path)])):
        assert serving_url(tmp_path) == "127.0.0.1:9100"
        assert serving_url(tmp_path / "another") is None
    with runs(stack(repositories=[str(tmp_path)], model_control="none")):
        assert serving_url(tmp_path) is None


def test_the_file_of_a_stack_that_was_killed_is_removed(folder: Path) -> None:
    code = (
        "import os, signal; from gourmet.stack import run_file\n"
        "with run_file.run_file_for((9100,), {'stack': {}}): os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-P", "-c", code], check=False)
    (left,) = folder.iterdir()
    with runs(stack(9200)) as path:  # by the next start
        assert list(folder.iterdir()) == [path]
    subprocess.run([sys.executable, "-P", "-c", code], check=False)
    assert left.exists()
    assert running_stack() is None  # or by any verb
    assert not list(folder.iterdir())


def test_a_run_folder_that_is_a_link_is_neither_read_nor_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert asked(verb) == "localhost:8000"
    with pytest.raises(GourmetError, match="name a folder of your own in GOURMET_KEYS"), runs(stack()):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


def test_of_several_stacks_only_the_one_on_the_default_port_is_chosen() -> None:
    with runs(stack(9100)), runs(stack(9200)):
        with pytest.raises(UsageError, match=r"127\.0\.0\.1:9100, 127\.0\.0\.1:9200: choose one with --url"):
            running_stack()
        with runs(stack(8000)):
            assert running_stack() == stack(8000)


def test_a_stack_is_found_by_its_address_and_perf_analyzer_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with runs(stack()):
        for address in ("localhost:9100", "127.0.0.1:9101"):
            assert run_file.stack_at(address) == running_stack()
        assert _address_for(["-m", "m"]) == ["-u", "127.0.0.1:9100"]
        monkeypatch.setenv("TRITON_SERVER_URL", "127.0.0.1:9100")
        assert _address_for(["-m", "m", "-i", "grpc"]) == ["-u", "127.0.0.1:9101"]


# Folders of running programs
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
    code = "from gourmet.served.files import RunFolder, Path; RunFolder('own-', Path(sys.argv[1])).close()"
    code = "import sys; " + code
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
