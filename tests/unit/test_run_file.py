"""Verbs find the running stack of this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.no_stack import runs, stack

from gourmet.commands.bench import measuring
from gourmet.commands.options import found_repositories, port_options, serving_url, url_option
from gourmet.commands.perf_analyzer import _address_for
from gourmet.errors import GourmetError, UsageError
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack import run_file
from gourmet.stack.run_file import running_stack


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No stack but the test's own."""
    for name in (run_file.FOLDER_ENV, "TRITON_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
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


def test_verbs_use_the_repositories_that_the_stack_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        "with run_file.run_file_for((9100,), {'stack': {}}):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
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
