from __future__ import annotations

import contextlib
import io
import json

import click
import pytest
from click.testing import CliRunner

from gourmet.cli import main
from gourmet.errors import echo
from gourmet.stack.readable_logs import LogPrinter


def test_labels_of_a_model_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    answer = "food answers: the sample is \x1b]0;title\aEgg\u202e"
    LogPrinter().say("gourmet", answer)
    echo(answer)
    assert [
        line.count("is \\x1b]0;title\\x07Egg\\u202e") for line in capsys.readouterr().out.splitlines()
    ] == [1, 1]


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
    """The web app's own pass as they are; Triton's, a model's and the launcher's have the same fields."""
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
        ("triton", "info"),
        ("triton", "error"),
        *[("triton", "info")] * 3,
        ("app.requests", "info"),
        ("web", "info"),
        ("gourmet", "info"),
        ("gourmet", "error"),
    ]
    assert all(line.keys() == {"time", "level", "logger", "message"} for line in lines)
    assert out.getvalue().splitlines()[5] == own


def test_the_reason_of_a_failed_start_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json")
    ran = CliRunner().invoke(main, ["up", "--triton-only", "--web-only"])
    logged = json.loads(ran.stderr)
    assert (ran.exit_code, logged["level"]) == (2, "error")
    assert logged["message"].startswith("Error: --triton-only and --web-only together leave nothing to start")
