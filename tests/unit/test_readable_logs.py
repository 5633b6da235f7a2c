from __future__ import annotations

import contextlib
import io

import click
import pytest

from gourmet.serving.readable_logs import LogPrinter


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


def test_a_line_keeps_its_time_and_message_and_says_where_it_is_from() -> None:
    assert printed(LOADED) == " triton │ 02:32:12 successfully loaded 'food_classifier'\n"


@pytest.mark.parametrize(
    "line",
    [
        POOL,
        NO_GPU,
        "+------+---+",
        "| Model | Version |",
        ENDED,
        ASIDE,
        "At:",
        "  /a/b/model.py(48): initialize",
        "",
    ],
)
def test_what_tells_nothing_is_left_out(line: str) -> None:
    assert printed(line) == ""


@pytest.mark.parametrize("line", [FAILED, "RuntimeError: from a model's own print"])
def test_faults_and_what_models_print_are_always_shown(line: str) -> None:
    assert printed(line)


@pytest.mark.parametrize("line", [POOL, NO_GPU, "+------+---+"])
def test_verbose_shows_everything(line: str) -> None:
    assert printed(line, verbose=True)


BOOTING = "[2026-11-21 03:02:09 +0000] [16840] [INFO] Booting worker with pid: 16840"
TIMEOUT = "[2026-11-21 03:02:09 +0000] [16830] [CRITICAL] WORKER TIMEOUT (pid:16840)"
ANSWERED = '127.0.0.1 "POST /predict HTTP/1.1" 200 527B 170ms 296435c3'
PROBED = '127.0.0.1 "GET /healthz HTTP/1.1" 200 15B 9ms a5f40133'


@pytest.mark.parametrize("line", [BOOTING, PROBED])
def test_the_web_apps_routine_is_left_out_unless_asked_for(line: str) -> None:
    assert printed(line, origin="web") == ""
    assert printed(line, origin="web", verbose=True)


def test_requests_and_faults_of_the_web_app_are_shown() -> None:
    assert printed(ANSWERED, origin="web") == f"    web │ {ANSWERED}\n"
    assert printed(TIMEOUT, origin="web") == "    web │ 03:02:09 WORKER TIMEOUT (pid:16840)\n"
