from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gourmet.served.manifest import sha256
from gourmet.stack import supervisor
from gourmet.stack.processes import Child, wait_until
from gourmet.stack.readable_logs import LogPrinter
from gourmet.stack.supervisor import StubWatchdog, Supervisor, WebOptions, backoff_s, load_older_versions
from gourmet.stack.triton_server import IMAGE_ENV, TritonOptions, TritonServer
from gourmet.triton_client.address import ADMIN_ENV


def test_restarts_back_off_exponentially_up_to_a_limit() -> None:
    waits = [None]
    for _ in range(9):
        waits.append(backoff_s(1.0, waits[-1]))
    assert waits[1:] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff_s(61.0, 2.0) == 0.0  # a long healthy life is a fresh start


def test_a_model_without_a_version_has_no_older_one_to_load(tmp_path: Path) -> None:
    class Triton:
        def index(self) -> dict[str, dict[str, str]]:
            return {"soup": {"state": "UNAVAILABLE", "reason": "no version"}}

    (tmp_path / "soup").mkdir()
    (tmp_path / "soup" / "config.pbtxt").touch()
    said: list[str] = []
    load_older_versions(Triton(), [tmp_path], {}, said.append)  # type: ignore[arg-type]
    assert said == ["the model 'soup' did not load, the others serve: no version"]


def test_a_restarted_triton_that_ends_while_it_starts_is_no_error_of_the_thread_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "backends").mkdir()
    program = tmp_path / "bin" / "tritonserver"
    program.write_text("#!/bin/sh\nexit 6\n")
    program.chmod(0o755)
    monkeypatch.setenv(IMAGE_ENV, str(tmp_path))
    with TritonServer(TritonOptions((tmp_path,)), lambda line: None) as server:
        child = server.child
        assert child
        wait_until(lambda: child.exit_status() == 6, 30, "it did not end")
        supervisor = Supervisor(LogPrinter(), threading.Event(), {}, [], server, None)
        before = threading.enumerate()
        supervisor._load_the_others(server)
        for thread in set(threading.enumerate()).difference(before):
            thread.join(30)  # pytest reports an error of a thread


def start(code: str, tmp_path: Path) -> tuple[Child, list[str]]:
    lines: list[str] = []
    command = [sys.executable, "-u", "-c", textwrap.dedent(code)]
    child = Child(command, env=dict(os.environ), cwd=tmp_path, on_line=lines.append)
    wait_until(lambda: bool(lines), 60, "the child said nothing")
    return child, lines


def test_a_child_that_ignores_sigterm_is_ended_all_the_same(tmp_path: Path) -> None:
    child, _ = start(
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up")
        time.sleep(60)
        """,
        tmp_path,
    )
    child.stop(timeout_s=0.3)
    assert child.exit_status() == -signal.SIGKILL


def test_grandchildren_end_with_their_parent(tmp_path: Path) -> None:
    child, lines = start(
        """
        import subprocess, sys, time
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(left.pid)
        time.sleep(60)
        """,
        tmp_path,
    )
    child.stop(timeout_s=2)
    wait_until(lambda: not is_running(int(lines[0])), 60, "the grandchild is still there")


def test_the_last_lines_of_a_child_that_ended_are_read(tmp_path: Path) -> None:
    child, lines = start("for number in range(5000): print(number)", tmp_path)
    wait_until(lambda: child.exit_status() is not None, 60, "the child did not end")
    child.reap_group()
    assert lines[-1] == "4999"


def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import os, sys, time
                from pathlib import Path
                from gourmet.stack.processes import Child
                code = "import time; time.sleep(60)"
                command = [sys.executable, "-c", code]
                child = Child(command, env=dict(os.environ), cwd=Path("."), on_line=str)
                print(child.pid, flush=True)
                time.sleep(60)
                """
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(pid), 60, "the child outlived its parent")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_watchdog_does_not_end_a_later_process_with_the_number_of_an_old_one() -> None:
    watchdog = StubWatchdog("127.0.0.1:9", print)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        earlier = psutil.Process(later.pid)
        earlier._ident = (later.pid, earlier.create_time() - 100)
        watchdog._replaced.append((0.0, [earlier]))
        watchdog._end_replaced()
        later.communicate(b"\n", timeout=60)
        assert later.returncode == 0


def test_the_newest_older_version_that_is_whole_is_loaded_instead(tmp_path: Path) -> None:
    model = tmp_path / "m"
    for number in (1, 2, 3):
        (model / str(number)).mkdir(parents=True)
        weights = model / str(number) / "model.onnx"
        weights.write_text(f"weights {number}")
        about = {"file": weights.name, "sha256": sha256(weights)}
        (weights.parent / "manifest.json").write_text(json.dumps(about))
    (model / "config.pbtxt").write_text('name: "m"')
    loaded: dict[str, Any] = {}
    triton: Any = SimpleNamespace(index=dict, load=loaded.__setitem__)
    said = list[str]()
    load_older_versions(triton, [tmp_path], {"m": "its file was changed"}, said.append)
    assert loaded["m"]["version_policy"] == {"specific": {"versions": [2]}}
    assert loaded["m"]["parameters"]["instead_of"] == {"string_value": "3"}
    (model / "2" / "model.onnx").write_text("damaged")
    load_older_versions(triton, [tmp_path], {"m": "its file was changed"}, said.append)
    assert loaded["m"]["version_policy"] == {"specific": {"versions": [1]}}
    assert said[-1].startswith("version 1 of 'm' serves instead")


def test_the_web_app_does_not_get_the_key_that_changes_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADMIN_ENV, "the key")
    monkeypatch.setattr(supervisor, "Child", lambda command, *, env, cwd, on_line: (command, env, cwd))
    options = WebOptions("127.0.0.1", 5000, workers=2, threads=8, triton_url="127.0.0.1:8000")
    started: object = Supervisor(LogPrinter(), threading.Event(), {}, (), None, options)._start_web(options)
    command, env, cwd = started  # type: ignore[misc]
    assert command[-1] == "app:create_app()"
    assert (env["TRITON_SERVER_URL"], env["MAX_AT_WORK"]) == ("127.0.0.1:8000", "8")
    assert "the key" not in env.values()
    assert cwd == Path("/"), "gunicorn imports modules of its folder first"
