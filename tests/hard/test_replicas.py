"""Three Tritons behind the app: their pace against one with as many instances, and beside one that is killed
or slow.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.checked_load import TURN_S, TURNS, Clients, asked_for, labels_of, one_thread, pace_row, row
from support.proxy import Proxy
from support.table import Keep
from support.triton import triton_server
from support.up import Up
from support.web_app import Site, StartWeb

from gourmet.systems.food11.contract import SYSTEM

MODEL = "food_classifier_onnx"


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, list[Proxy | str]]]:
    """Addresses of three Tritons with an instance each, and of one with three."""
    with ExitStack() as running:
        found: dict[int, list[Proxy | str]] = {}
        for count in (3, 1):
            servers = []
            for number in range(count):
                folder = one_thread(tmp_path_factory.mktemp(f"models{count}{number}"), MODEL, 3 // count)
                servers.append(running.enter_context(triton_server(folder)))
                servers[-1].wait_until_live(180)
            found[count] = [each.options.http_url for each in servers]
        yield found


def test_three_keep_the_pace_of_one_with_as_many_instances(
    ways: dict[int, list[str]], start: StartWeb, table: Keep
) -> None:
    several, single = (
        start(",".join(ways[count]), FOOD11_MODEL_NAME=MODEL, MAX_AT_WORK="8") for count in (3, 1)
    )
    labels = labels_of(single)
    assert labels_of(several) == labels
    table(pace_row("three Tritons against one with as many instances", several, single, labels))


def test_one_that_is_slow_changes_little_for_all(
    ways: dict[int, list[str]], start: StartWeb, table: Keep
) -> None:
    with ExitStack() as running:
        proxies = [running.enter_context(Proxy(address)) for address in ways[3]]
        web = start(",".join(each.address for each in proxies), FOOD11_MODEL_NAME=MODEL)
        labels = labels_of(web)
        asked_for(web, labels, 2.0)
        calm, slow = [], []
        for _ in range(TURNS):
            calm.append(asked_for(web, labels, TURN_S))
            proxies[0].delay_s = 0.1  # on the way there and on the way back
            asked_for(web, labels, 1.0)
            slow.append(asked_for(web, labels, TURN_S))
            proxies[0].delay_s = 0.0
            asked_for(web, labels, 1.0)
    before, beside = (statistics.median(each.p99_s for each in outcomes) for outcomes in (calm, slow))
    table(
        row(
            "one of three Tritons is slow by 200 ms",
            [*calm, *slow],
            f"p99 {1000 * beside:.0f} ms against {1000 * before:.0f}",
            beside <= 1.5 * before,
            times=beside / before,
        )
    )


def test_one_of_three_that_is_killed_is_back_at_full_pace_within_seconds(tmp_path: Path, table: Keep) -> None:
    (tmp_path / "tmp").mkdir()
    models = one_thread(tmp_path / "models", MODEL, 1)
    env = {SYSTEM.model_variable: MODEL}
    up = Up("--replicas", "3", "--model-repository", str(models), tmp=tmp_path / "tmp", env=env)
    try:
        up.wait_for("the page http://127.0.0.1:", 180)
        site = Site(up.port)
        labels = labels_of(site)
        asked_for(site, labels, 3.0)
        with Clients(site, labels) as clients:
            began = time.monotonic()
            time.sleep(8)
            killed = time.monotonic()
            os.kill(up.triton_pid(), signal.SIGKILL)
            while not all(site.request("GET", "/readyz").json["servers"].values()) or (
                time.monotonic() < killed + 1
            ):
                time.sleep(0.1)
            back = time.monotonic()
            time.sleep(13)
        before, after = clients.outcome.rate(began, killed), clients.outcome.rate(back + 5, back + 13)
        meanwhile = clients.outcome.rate(killed, back)
    finally:
        if up.process.poll() is None:
            up.stop()
    refused = clients.outcome.statuses.total() - clients.outcome.statuses[200]
    table(
        row(
            "one of three Tritons is killed under load",
            [clients.outcome],
            f"{before:.0f} photos a second, {meanwhile:.0f} while it was away, {after:.0f} from 5 s after",
            refused <= 0.005 * clients.outcome.statuses.total() and after >= 0.9 * before,
            away_s=back - killed,
            times=after / before,
        )
    )
