"""`gourmet up`: what is refused before anything starts, restarted or stopped, and what its log shows."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import psutil
import pytest
from support.cli import gourmet, said
from support.eventually import eventually

from gourmet.errors import GourmetError, echo
from gourmet.repository.models import DEFAULT_REPOSITORY, RepositoryError
from gourmet.served.manifest import sha256
from gourmet.served.signals import STOPS, first_stop, set_on_stop
from gourmet.stack import preflight, run_file, supervisor, triton_server
from gourmet.stack.processes import Child, wait_until
from gourmet.stack.readable_logs import LogPrinter
from gourmet.stack.supervisor import StubWatchdog, Supervisor, WebOptions, backoff_s, load_older_versions
from gourmet.stack.triton_server import IMAGE_ENV, TritonOptions, TritonServer
from gourmet.systems.food11 import contract
from gourmet.triton_client.address import ADMIN_ENV


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def model(repository: Path, name: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"')


def free_options() -> list[object]:
    """Every port of a stack, so that none that runs here is in the way."""
    names = "--port", "--http-port", "--grpc-port", "--metrics-port"
    return [word for option in zip(names, preflight.free_ports(4), strict=True) for word in option]


def test_a_port_in_use_is_named_with_the_option_that_changes_it(taken_port: int) -> None:
    with pytest.raises(preflight.NotReadyToStart, match=rf"port {taken_port} .* in use.*--http-port"):
        preflight.check_ports("127.0.0.1", {"--http-port": taken_port})


def test_a_free_port_stays_this_process_s_while_its_server_starts_and_restarts() -> None:
    (port,) = preflight.free_ports(1)
    for _ in range(2):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        preflight.check_ports("127.0.0.1", {"--port": port})
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(server.getsockname()),
            pytest.raises(preflight.NotReadyToStart, match="in use"),
        ):
            preflight.check_ports("127.0.0.1", {"--port": port})


def test_a_second_start_names_the_running_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_file.FOLDER_ENV, str(tmp_path / "keys"))
    (http,) = preflight.free_ports(1)
    own, triton = os.getpid(), f"127.0.0.1:{http}"
    stack = run_file.RunningStack(own, triton, "", "", "http://127.0.0.1:5", [], "explicit")
    with run_file.run_file_for((http,), {"stack": asdict(stack)}):
        output = said("up", "--triton-only", *free_options(), "--http-port", http, status=1)
        assert (
            f"(process {own}, Triton at {triton}, the page http://127.0.0.1:5) and uses port {http}: "
            in output
        )
        assert f"end it with Ctrl-C or `kill {own}`, or choose another port with --http-port" in output
    preflight.check_ports("127.0.0.1", {"--http-port": http})


@pytest.mark.parametrize(
    ("allowed", "refused"), [(64, True), (255, True), (256, False), (resource.RLIM_INFINITY, False)]
)
def test_a_low_limit_on_open_files_is_reported_with_the_command(
    monkeypatch: pytest.MonkeyPatch, allowed: int, refused: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda limit: {resource.RLIMIT_NOFILE: (allowed, 4096)}[limit])
    named = rf"open {allowed} files .*`ulimit -n`.* run `ulimit -n 1024`"
    with pytest.raises(preflight.NotReadyToStart, match=named) if refused else nullcontext():
        preflight.check_open_files()
    if refused:
        assert f"open {allowed} files" in gourmet("up").output


def test_a_model_in_two_repositories_is_refused(tmp_path: Path) -> None:
    model(tmp_path / "a", "soup")
    model(tmp_path / "b", "soup")
    with pytest.raises(preflight.NotReadyToStart, match="more than one repository has soup"):
        preflight.check_repositories([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("gone", "does not exist: name a folder"),
        ("", r"has no models: a model is a folder with a config\.pbtxt"),
    ],
)
def test_a_repository_without_models_is_refused(tmp_path: Path, folder: str, says: str) -> None:
    with pytest.raises(RepositoryError, match=says):
        preflight.check_repositories([tmp_path / folder])


def test_the_environment_chooses_the_model_that_answers_the_page() -> None:
    served = {
        "food_classifier": {"parameters": {"system": {"string_value": "food11"}}},
        "food_classifier_onnx": {},
    }
    chosen = preflight.configured_models({contract.SYSTEM.model_variable: "food_classifier_onnx"}, served)
    assert chosen == {"food11": "food_classifier_onnx"}


@pytest.mark.parametrize(
    ("name", "what"), [("food_clasifier", "not a served model"), ("digits", "a model of the system 'digits'")]
)
def test_an_unusable_model_is_refused_with_the_usable_ones(name: str, what: str) -> None:
    served = preflight.check_repositories([DEFAULT_REPOSITORY])
    match = f"is '{name}', which is {what}: choose one of .*food_cl"
    with pytest.raises(preflight.NotReadyToStart, match=match):
        preflight.configured_models({contract.SYSTEM.model_variable: name}, served)


def test_a_model_for_study_is_held_back_unless_the_app_asks_it(tmp_path: Path) -> None:
    for name in ("asked", "other", "study"):
        model(tmp_path, name)
    study = 'parameters [ { key: "load" value: { string_value: "asked" } } ]'
    (tmp_path / "study" / "config.pbtxt").write_text(f'name: "study" {study}')
    (tmp_path / "other" / "config.pbtxt").write_text('name: "other" broken {')  # which Triton says itself
    served = preflight.check_repositories([tmp_path])
    assert preflight.held_back(served, ["asked"]) == ["study"]
    assert preflight.held_back(served, ["study"]) == []


def test_shipped_models_that_no_page_uses_are_held_back() -> None:
    served = preflight.check_repositories([DEFAULT_REPOSITORY])
    configured = preflight.configured_models({}, served).values()
    held_back = preflight.held_back(served, configured)
    for_study = {"onnx-model", "onnx-mnist-cpu", "translator_bls", "captioner", "captioner_stream"}
    assert for_study <= set(held_back)
    assert not set(configured) & set(held_back)
    chosen = preflight.configured_models({"CAPTIONER_MODEL_NAME": "captioner"}, served)
    assert "captioner" not in preflight.held_back(served, chosen.values())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--triton-only", "--web-only"), "leave nothing to start: give one or neither"),
        (("--port", "{taken}"), "in use or cannot be bound"),
        (("--triton-only", "--http-port", "{taken}"), "choose another port with --http-port"),
    ],
)
def test_up_refuses_before_anything_starts(taken_port: int, words: tuple[str, ...], says: str) -> None:
    done = gourmet("up", *free_options(), *[word.format(taken=taken_port) for word in words])
    assert (done.exit_code in (1, 2), says in done.output) == (True, True), done.output


# Restarts
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
    command = [sys.executable, "-u", "-c", code]
    child = Child(command, env=dict(os.environ), cwd=tmp_path, on_line=lines.append)
    wait_until(lambda: bool(lines), 60, "the child said nothing")
    return child, lines


def test_a_child_that_ignores_sigterm_is_ended_all_the_same(tmp_path: Path) -> None:
    ignoring = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    )
    child, _ = start(ignoring, tmp_path)
    child.stop(timeout_s=0.3)
    assert child.exit_status() == -signal.SIGKILL


def test_grandchildren_end_with_their_parent(tmp_path: Path) -> None:
    child, lines = start(
        "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)", tmp_path
    )
    child.stop(timeout_s=2)
    wait_until(lambda: not is_running(int(lines[0])), 60, "the grandchild is still there")


def test_the_last_lines_of_a_child_that_ended_are_read(tmp_path: Path) -> None:
    child, lines = start("for number in range(5000): print(number)", tmp_path)
    wait_until(lambda: child.exit_status() is not None, 60, "the child did not end")
    child.reap_group()
    assert lines[-1] == "4999"


PARENT = """
import os, time
from pathlib import Path
from gourmet.stack.processes import Child
print(Child(["sleep", "60"], env=dict(os.environ), cwd=Path("."), on_line=str).pid, flush=True)
time.sleep(60)
"""


def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(pid), 60, "the child outlived its parent")


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_the_watchdog_does_not_end_a_later_process_with_the_number_of_an_old_one() -> None:
    watchdog = StubWatchdog("127.0.0.1:9", print)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        earlier = psutil.Process(later.pid)
        earlier._ident = (later.pid, earlier.create_time() - 100)
        watchdog._replaced.append((0.0, [earlier]))
        watchdog._end_replaced()
        later.communicate(b"\n", timeout=60)
        assert later.returncode == 0


def test_a_stub_that_its_triton_has_ended_is_a_zombie_at_most_for_one_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reloaded, watchdog = list[str](), StubWatchdog("127.0.0.1:9", print)
    monkeypatch.setattr(watchdog, "_reload", reloaded.append)
    parent = [sys.executable, "-c", "import os; os.fork() or os._exit(0); input()"]
    with subprocess.Popen(parent, stdin=subprocess.PIPE) as triton:
        watchdog._triton = triton.pid
        children = psutil.Process(triton.pid).children
        eventually(lambda: [child.status() for child in children()] == [psutil.STATUS_ZOMBIE])
        watchdog._models = dict.fromkeys(children(), "m")
        watchdog._check_stubs(triton.pid)
        assert reloaded == []
        watchdog._check_stubs(triton.pid)
        assert reloaded == ["m"]
        triton.communicate(b"\n", timeout=60)


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


# The log
def test_labels_of_a_model_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    answer = "food answers: the sample is \x1b]0;title\aEgg\u202e"
    LogPrinter().say("gourmet", answer)
    echo(answer)
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("is \\x1b]0;title\\x07Egg\\u202e") for line in lines] == [1, 1]


def printed(line: str, *, verbose: bool = False, origin: str = "triton") -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        LogPrinter(verbose=verbose).sink(origin)(line)
    return click.unstyle(out.getvalue())


LOADED = "I1121 02:32:12.299183 6125 model_lifecycle.cc:839] \"successfully loaded 'food_classifier'\""
POOL = 'I1121 02:32:03.186992 6125 cuda_memory_manager.cc:117] "CUDA memory pool disabled"'
NO_GPU = 'E1121 02:32:03.187069 6125 server.cc:241] "CudaDriverHelper has not been initialized."'
ENDED = 'E1121 02:32:09.187069 6125 main.cc:437] "failed to stop server: Internal - Exit timeout expired."'
ASIDE = (
    "W1121 02:32:09.187069 6125 model_repository_manager.cc:1] \"ignore version directory '.withdrawn-2'\""
)
FAILED = "E1121 02:32:03.190579 6125 model_lifecycle.cc:642] \"failed to load 'x' version 1: bad\""
BOOTING = "[2026-11-21 03:02:09 +0000] [16840] [INFO] Booting worker with pid: 16840"
TIMEOUT = "[2026-11-21 03:02:09 +0000] [16830] [CRITICAL] WORKER TIMEOUT (pid:16840)"
ANSWERED = '127.0.0.1 "POST /predict HTTP/1.1" 200 527B 170ms 296435c3'
PROBED = '127.0.0.1 "GET /healthz HTTP/1.1" 200 15B 9ms a5f40133'


@pytest.mark.parametrize(
    ("origin", "line", "shown"),
    [
        ("triton", LOADED, "02:32:12 successfully loaded 'food_classifier'"),
        ("triton", FAILED, "02:32:03 failed to load 'x' version 1: bad"),
        ("triton", "RuntimeError: from a model's own print", "RuntimeError: from a model's own print"),
        ("web", ANSWERED, ANSWERED),
        ("web", TIMEOUT, "03:02:09 WORKER TIMEOUT (pid:16840)"),
    ],
)
def test_informative_lines_are_shown_with_time_and_origin(origin: str, line: str, shown: str) -> None:
    assert printed(line, origin=origin) == f"{origin:>7} │ {shown}\n"


TABLE, TRACE = ("+------+---+", "| Model | Version |"), ("At:", "  /a/b/model.py(48): initialize")


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        *(("triton", line) for line in (POOL, NO_GPU, ENDED, ASIDE, "", *TABLE, *TRACE)),
        ("web", BOOTING),
        ("web", PROBED),
    ],
)
def test_noise_is_left_out_of_the_log_unless_verbose(origin: str, line: str) -> None:
    assert printed(line, origin=origin) == ""
    assert printed(line, origin=origin, verbose=True)


def test_with_json_lines_of_every_program_are_json() -> None:
    own = json.dumps({"time": "now", "level": "info", "logger": "app.requests", "message": "request"})
    with contextlib.redirect_stdout(io.StringIO()) as out:
        log = LogPrinter(as_json=True)
        for line in (LOADED, FAILED, "RuntimeError: from a model's own print", "[1, 2]", "{not json", POOL):
            log.sink("triton")(line)
        log.sink("web")(own)
        log.sink("web")("Traceback (most recent call last):")
        log.say("gourmet", "ready after 7.7 s", "green")
        log.say("gourmet", "gone", "red")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        *(("triton", "info"), ("triton", "error"), *[("triton", "info")] * 3),
        *(("app.requests", "info"), ("web", "info"), ("gourmet", "info"), ("gourmet", "error")),
    ]
    assert all(line.keys() == {"time", "level", "logger", "message"} for line in lines)
    assert out.getvalue().splitlines()[5] == own


def test_the_reason_of_a_failed_start_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json")
    ran = gourmet("up", "--triton-only", "--web-only")
    logged = json.loads(ran.stderr)
    assert (ran.exit_code, logged["level"]) == (2, "error")
    assert logged["message"].startswith("Error: --triton-only and --web-only together leave nothing to start")


# The packages
def test_models_use_this_environment_s_packages_and_send_no_telemetry() -> None:
    environment = triton_server.find_wheel().environment()
    first = Path(environment["PATH"].split(os.pathsep)[0])
    assert (first / "python3").samefile(sys.executable)
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"


def test_numpy_2_in_the_servers_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_server, "version", lambda name: "2.1.0")
    with pytest.raises(GourmetError, match=r"numpy 2\.1\.0 .*pip install 'numpy<2'"):
        triton_server.find_wheel()


def test_a_missing_wheel_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_server, "find_spec", lambda name: None)
    with pytest.raises(GourmetError, match=r"nvidia-pytriton is missing. Run `make setup`.*glibc 2\.35"):
        triton_server.find_wheel()


def test_the_python_backend_makes_its_folders_where_its_server_works(tmp_path: Path) -> None:
    """Those of killed servers stayed in /tmp: there were 112."""
    result = triton_server.find_wheel()
    original = (result.server / "backends" / "python" / "libtriton_python.so").read_bytes()
    made = (result.assemble_backends(tmp_path / "backends") / "python" / "libtriton_python.so").read_bytes()
    assert original.count(b"/tmp/python_env_") == 1
    assert b"/tmp/python_env_" not in made
    assert len(made) == len(original)
    assert sum(a != b for a, b in zip(original, made, strict=True)) == 4


# Signals
def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOPS]


@pytest.mark.parametrize("number", STOPS)
def test_the_first_stop_is_noted_and_the_second_ends(number: signal.Signals) -> None:
    before = handlers()
    with first_stop() as stop_requested:
        signal.raise_signal(number)
        assert stop_requested.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert handlers() == before


def test_a_terminal_that_closes_is_a_stop_but_under_nohup() -> None:
    for before, stops in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
        stop_requested = threading.Event()
        result = signal.signal(signal.SIGHUP, before)
        try:
            with set_on_stop(stop_requested):
                signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == before
        finally:
            signal.signal(signal.SIGHUP, result)
        assert stop_requested.is_set() == stops


def test_however_many_stops_come_they_only_set_the_event() -> None:
    before, stop_requested = handlers(), threading.Event()
    with set_on_stop(stop_requested):
        for number in (*STOPS, *STOPS):
            signal.raise_signal(number)
    assert stop_requested.is_set()
    assert handlers() == before
