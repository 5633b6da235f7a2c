"""The app in front of three real Tritons that have one name, as behind a headless Service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import pytest
from support.eventually import eventually
from support.triton import some_models, triton_server

from app import create_app
from app.asking import AppTriton
from app.core.settings import Settings
from gourmet.client import balancing, lookup
from gourmet.client.deadline import Deadline
from gourmet.client.triton import Triton
from gourmet.serving.triton_server import TritonOptions, TritonServer
from gourmet.systems.food11.contract import SYSTEM

pytestmark = pytest.mark.slow
MODEL = "food_classifier_onnx"
NAME = "triton.test"
# All are loopback: on each of them a server may listen at the same port.
IPS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@dataclass
class OneName:
    options: TritonOptions  # of the first
    known: tuple[str, ...] = IPS

    def look_up(self, host: str) -> tuple[str, ...]:
        return self.known if host == NAME else ()

    def asked(self) -> list[int]:
        """How many requests each was sent so far."""
        found = []
        for ip in IPS:
            with Triton.at(f"{ip}:{self.options.http_port}") as triton:
                found.append(triton.total(MODEL).requests)
        return found


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonOptions]:
    models = some_models(tmp_path_factory.mktemp("models"), MODEL)
    with ExitStack() as running:
        first = running.enter_context(triton_server(models))
        for ip in IPS[1:]:
            running.enter_context(TritonServer(replace(first.options, host=ip), lambda line: None))
        for ip in IPS:
            address = f"{ip}:{first.options.http_port}"
            eventually(lambda: Triton.at(address).is_live(), 180)  # noqa: B023 - called here
        yield first.options


@pytest.fixture
def named(servers: TritonOptions, monkeypatch: pytest.MonkeyPatch) -> OneName:
    found = OneName(servers)
    monkeypatch.setattr(lookup, "look_up", found.look_up)
    monkeypatch.setattr(balancing, "EVERY_S", 0.1)
    return found


def ask(triton: AppTriton, photos: int) -> None:
    served = triton.describe(MODEL, Deadline(10))
    inputs = SYSTEM.request_inputs(SYSTEM.sample(), served)
    # Many at a time: one after another, all would go to the server that was a little faster at first.
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda _: triton.infer(MODEL, inputs, Deadline(10)), range(photos)))


@pytest.mark.parametrize("protocol", ["http", "grpc for whole answers", "grpc"])
def test_all_that_a_name_stands_for_are_asked_and_changes_are_followed(named: OneName, protocol: str) -> None:
    http, grpc = (f"{NAME}:{port}" for port in (named.options.http_port, named.options.grpc_port))
    named.known = IPS[:2]
    where = {"http": (http,), "grpc": (f"grpc://{grpc}",)}.get(protocol, (http, 2.0, grpc))
    with closing(AppTriton(*where)) as triton:
        eventually(lambda: len(triton.servers()) == 2)
        before = named.asked()
        ask(triton, 60)
        first, second, third = (now - then for now, then in zip(named.asked(), before, strict=True))
        assert (first + second, third) == (60, 0)
        assert min(first, second) > 1
        named.known = IPS[1:]
        eventually(lambda: list(triton.servers()) == [place(ip, named, protocol) for ip in IPS[1:]])
        before = named.asked()
        ask(triton, 60)
        first, second, third = (now - then for now, then in zip(named.asked(), before, strict=True))
        assert (first, second + third) == (0, 60)
        assert min(second, third) > 1
        assert all(triton.servers().values())


def place(ip: str, named: OneName, protocol: str) -> str:
    return f"{ip}:{named.options.grpc_port if protocol == 'grpc' else named.options.http_port}"


def test_the_probe_names_the_servers_and_a_name_that_is_unknown_for_a_while_changes_nothing(
    named: OneName, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(triton_url=f"{NAME}:{named.options.http_port}", models={"food11": MODEL})
    browser = create_app(settings).test_client()
    several = {place(ip, named, "http"): True for ip in IPS}
    eventually(lambda: browser.get("/readyz").get_json().get("servers") == several)
    named.known = ()
    before = named.asked()
    for _ in range(30):
        assert browser.get("/test", headers={"Accept": "application/json"}).status_code == 200
    assert sum(named.asked()) - sum(before) >= 30
    assert browser.get("/readyz").get_json()["servers"] == several
