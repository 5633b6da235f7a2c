"""The web app under load: it receives SIGTERM again and again; one address does its worst for a minute."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from support import one_client
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
            seen="the answer, or 503 to come again; from then on connections are refused",
            held={"it ends well": statuses == {0}},
            times=TIMES,
            figures={
                "longest s until it was over": round(max(took_s), 1),
                "connections refused": len(attempts) - len(account.attempts),
            },
        )
    )


SECONDS = 60


@pytest.mark.timeout(600)
def test_one_client_against_many(start: Callable[..., Any], triton: Any, table: Keep) -> None:
    web = start(triton.http_url, FOOD11_MODEL_NAME="food_classifier_onnx", MAX_AT_WORK="8")
    photos = learn(web.url, [path.read_bytes() for path in SAMPLES])
    with PhotoLoad(web.url, photos, per_s=10) as load:
        load.run_for(5)
        begin = time.monotonic()
        load.run_for(20)
        usual = load.account().between(begin, time.monotonic())
        with one_client.attacked(web.port, *one_client.CHEAP):
            begin = time.monotonic()
            load.run_for(SECONDS)
            during = load.account().between(begin, time.monotonic())
            ended = time.monotonic()
        load.run_for(10)
    usual_s, during_s = usual.quantile_s(ANSWERED, 0.95), during.quantile_s(ANSWERED, 0.95)
    table(
        during.row(
            f"one address does its worst with 1,200 connections, for {SECONDS} s",
            seen="photos from another address are answered",
            held={
                "all are answered": during.count(ANSWERED) == len(during.attempts),
                "p95": during_s <= 2 * usual_s,
            },
            recovery_s=load.account().recovery_s(ended),
            figures={
                "usual p95 ms": round(usual_s * 1000, 1),
                "p95 ms meanwhile": round(during_s * 1000, 1),
            },
        )
    )
