"""The web app under load receives SIGTERM, again and again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.accounting import ANSWERED, Account, Attempt, PhotoLoad, learn
from support.stack import SAMPLES
from support.table import Keep

TIMES = 10
PER_S = 25


@pytest.mark.timeout(600)
def test_told_to_stop_under_load(start: Callable[..., Any], triton: Any, table: Keep) -> None:
    attempts: list[Attempt] = []
    took_s: list[float] = []
    statuses = set()
    for number in range(TIMES):
        web = start(triton.http_url)
        photos = learn(web.url, [path.read_bytes() for path in SAMPLES])
        with PhotoLoad(web.url, photos, PER_S, keeps_alive=number % 2 == 0) as load:
            load.run_until(lambda load=load: load.account().count(ANSWERED) > PER_S)
            web.process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            load.run_until(lambda web=web: web.process.poll() is not None)
            took_s.append(time.monotonic() - told)
        statuses.add(web.process.returncode)
        attempts += load.account().attempts
    account = Account(tuple(attempts)).taken_in
    table(
        account.row(
            "the web app receives SIGTERM under load",
            seen="the answer; from then on connections are refused",
            held={"it ends well": statuses == {0}},
            times=TIMES,
            figures={
                "longest s until it was over": round(max(took_s), 1),
                "connections refused": len(attempts) - len(account.attempts),
            },
        )
    )
