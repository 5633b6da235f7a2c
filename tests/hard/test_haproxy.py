"""HAProxy, as we configure it, in front of three Tritons and two web apps: its pace, and what is lost when
one of them is killed, stands still, is slow, lacks the model or has another version, or when it is itself
reloaded.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.checked_load import Clients, labels_of, one_thread, pace_row, row
from support.eventually import eventually
from support.haproxy import ABSENT, HAPROXY, Haproxy
from support.proxy import Proxy
from support.table import Keep
from support.triton import triton_server
from support.web_app import StartWeb

from gourmet.client.triton import Triton
from gourmet.serving.processes import Child
from gourmet.serving.triton_server import TritonServer

pytestmark = pytest.mark.skipif(not HAPROXY, reason=ABSENT)
MODEL = "food_classifier"  # which is sent the photo as it is
DEADLINE_S = 5


@dataclass
class Fleet:
    """What stands behind HAProxy."""

    haproxy: Haproxy
    tritons: list[TritonServer]
    processes: list[Child]
    proxy: Proxy  # in front of the third
    labels: list[str]

    def is_whole(self) -> bool:
        return all(self.haproxy.are_up().values())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, start: StartWeb) -> Iterator[Fleet]:
    with ExitStack() as running:
        tritons, processes = [], []
        for number in range(3):
            folder = tmp_path_factory.mktemp(f"models{number}")
            server = triton_server(one_thread(folder, MODEL, 1))
            running.callback(server.close)
            tritons.append(server)
            processes.append(server.start())
        for server in tritons:
            server.wait_until_live(180)
        haproxy = Haproxy(tmp_path_factory.mktemp("haproxy") / "log")
        given = {"FOOD11_MODEL_NAME": MODEL, "MAX_AT_WORK": "8", "TRUSTED_PROXIES": "1"}
        given |= {"WEB_CONCURRENCY": "1", "REQUEST_DEADLINE_S": str(DEADLINE_S)}
        webs = [start(haproxy.triton, TRITON_GRPC_URL=haproxy.grpc, **given) for _ in range(2)]
        proxy = running.enter_context(Proxy(tritons[2].options.http_url))
        https = [*(each.options.http_url for each in tritons[:2]), proxy.address]
        haproxy.start(list(zip(https, [each.options.grpc_url for each in tritons], strict=True)), webs)
        running.callback(haproxy.stop)
        fleet = Fleet(haproxy, tritons, processes, proxy, [])
        eventually(lambda: len(haproxy.are_up()) >= 5 and fleet.is_whole())
        fleet.labels = labels_of(haproxy)
        assert len(set(fleet.labels)) > 1
        yield fleet


def test_three_behind_haproxy_keep_the_pace_of_one_with_as_many_instances(
    fleet: Fleet, tmp_path: Path, start: StartWeb, table: Keep
) -> None:
    with triton_server(one_thread(tmp_path / "models", MODEL, 3)) as server:
        server.wait_until_live(180)
        single = start(server.options.http_url, FOOD11_MODEL_NAME=MODEL, MAX_AT_WORK="8")
        found = pace_row(
            "three Tritons and two web apps behind HAProxy against one of each with as many instances",
            fleet.haproxy,
            single,
            fleet.labels,
        )
        single.stop()
    table(found)


def kill(fleet: Fleet) -> None:
    os.kill(fleet.processes[0].pid, signal.SIGKILL)


def come_back(fleet: Fleet) -> None:
    fleet.tritons[0].stop()  # what is left of it
    fleet.processes[0] = fleet.tritons[0].start()
    fleet.tritons[0].wait_until_live(180)


def stop(fleet: Fleet) -> None:
    os.kill(fleet.processes[1].pid, signal.SIGSTOP)


def go_on(fleet: Fleet) -> None:
    os.kill(fleet.processes[1].pid, signal.SIGCONT)


def slow_down(fleet: Fleet) -> None:
    fleet.proxy.delay_s = 0.1  # on the way there and on the way back


def speed_up(fleet: Fleet) -> None:
    fleet.proxy.delay_s = 0.0


def lose_the_model(fleet: Fleet) -> None:
    with Triton.at(fleet.tritons[0].options.http_url) as triton:
        triton.unload(MODEL)


def load(fleet: Fleet) -> None:
    with Triton.at(fleet.tritons[0].options.http_url) as triton:
        triton.load(MODEL)


def rename(fleet: Fleet, version: str, other: str) -> None:
    model = Path(fleet.tritons[0].options.repositories[0]) / MODEL
    (model / version).rename(model / other)
    load(fleet)


def serve_another_version(fleet: Fleet) -> None:
    rename(fleet, "1", "7")


def serve_the_same_version(fleet: Fleet) -> None:
    rename(fleet, "7", "1")


def nothing(fleet: Fleet) -> None:
    pass


def reload_thrice(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.haproxy.reload()
        time.sleep(0.5)


FAULTS = [
    ("one of three Tritons behind HAProxy is killed under load", kill, come_back, 0.005),
    # Those that it has under way wait until it is found out, which takes two checks of two seconds.
    ("one of three Tritons behind HAProxy stands still under load", stop, go_on, 0.01),
    ("HAProxy is reloaded three times under load", reload_thrice, nothing, 0.0),
    ("one of three Tritons behind HAProxy is slow by 200 ms", slow_down, speed_up, 0.0),
    # While a version loads a few requests wait, on a busy machine for longer than their deadline.
    (
        "one of three Tritons behind HAProxy has another version",
        serve_another_version,
        serve_the_same_version,
        0.005,
    ),
    # It refuses at once, so that it has the fewest under way and is sent most, until two checks have failed.
    ("one of three Tritons behind HAProxy loses the model under load", lose_the_model, load, 0.05),
]


@pytest.mark.parametrize(("tried", "fault", "mend", "allowed"), FAULTS)
def test_what_is_lost_under_load_is_little_and_never_silent(
    fleet: Fleet,
    table: Keep,
    tried: str,
    fault: Callable[[Fleet], None],
    mend: Callable[[Fleet], None],
    allowed: float,
) -> None:
    eventually(fleet.is_whole, 60)
    with Clients(fleet.haproxy, fleet.labels) as clients:
        began = time.monotonic()
        time.sleep(6)
        happens = time.monotonic()
        fault(fleet)
        time.sleep(8)
        mend(fleet)
        eventually(fleet.is_whole, 60)
        back = time.monotonic()
        time.sleep(8)
    outcome = clients.outcome
    before, after = outcome.rate(began, happens), outcome.rate(back + 2, back + 8)
    meanwhile = outcome.rate(happens, back)
    refused = outcome.statuses.total() - outcome.statuses[200]
    table(
        row(
            tried,
            [outcome],
            f"{before:.0f} photos a second, {meanwhile:.0f} meanwhile, {after:.0f} afterwards",
            # All are up again; the pace of a machine that others use too changes by itself.
            refused <= allowed * outcome.statuses.total() and after >= 0.5 * before,
            away_s=back - happens,
            longest_s=max(outcome.seconds),
            times=after / before,
        )
    )
