"""`gourmet up --replicas`: several Tritons behind one app, as a user runs and changes them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checked_load import Clients, labels_of
from support.eventually import eventually
from support.triton import some_models
from support.up import GOURMET, Up
from support.web_app import Site

from gourmet.client.triton import Triton
from gourmet.repository import versions
from gourmet.serving.waiting import http_ok, wait_until
from gourmet.systems.food11.contract import SYSTEM

pytestmark = pytest.mark.slow
MODEL = "food_classifier_onnx"


class Three:
    """A running `gourmet up --replicas 3`, its repository, and the verbs of the same user."""

    def __init__(self, tmp: Path) -> None:
        self.models = some_models(tmp / "models", MODEL, "digits")
        (tmp / "tmp").mkdir()
        (tmp / "run").mkdir()
        self.env = {"XDG_RUNTIME_DIR": str(tmp / "run"), SYSTEM.model_variable: MODEL}
        arguments = ("--replicas", "3", "--workers", "1", "--model-repository", str(self.models))
        self.up = Up(*arguments, tmp=tmp / "tmp", env=self.env)
        self.urls = [f"127.0.0.1:{self.up.http + apart}" for apart in (0, 10, 20)]
        self.site = Site(self.up.port)
        self.labels: list[str] = []

    def answering(self) -> list[bool]:
        return list(self.site.request("GET", "/readyz").json["servers"].values())

    def gourmet(self, *words: str, status: int = 0) -> str:
        env = {**os.environ, **self.env, "TMPDIR": str(self.up.tmp)}
        done = subprocess.run([GOURMET, *words], env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def instances(self) -> list[int]:
        found = []
        for url in self.urls:
            with Triton.at(url) as triton:
                found.append(triton.config(MODEL)["instance_group"][0]["count"])
        return found

    def versions(self) -> list[str]:
        found = []
        for url in self.urls:
            with Triton.at(url) as triton:
                found.append(triton.describe(MODEL).version)
        return found

    def under_load(self, clients: int) -> Clients:
        return Clients(self.site, self.labels, clients)

    def all_were_right(self, load: Clients) -> None:
        assert set(load.outcome.statuses) == {200}
        assert load.outcome.wrong == 0

    def alike(self, said: list[dict[str, str]]) -> list[tuple[str, str]]:
        return [(line["level"], line["cause"]) for line in said if line["check"] == "replicas"]

    def triton_pid(self, number: int) -> int:
        """Of the replica; the one that was started last, if it was started again."""
        wanted = f"--http-port={self.up.http + 10 * number}"
        commands = self.up._commands().items()
        return max(pid for pid, line in commands if wanted in line and "tritonserver" in line.split()[0])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    found = Three(tmp_path_factory.mktemp("three"))
    try:
        found.up.wait_for("the page http://127.0.0.1:", 180)
        found.labels = labels_of(found.site)
        yield found
    finally:
        if found.up.process.poll() is None:
            found.up.stop(signal.SIGTERM)


def test_three_answer_and_the_ready_line_names_each(three: Three) -> None:
    for url in three.urls:
        assert f"Triton   http://{url}, gRPC" in three.up.output
        assert f"{MODEL} at {url} answers: " in three.up.output
    eventually(lambda: three.answering() == [True] * 3)
    with three.under_load(4) as load:
        time.sleep(3)
    three.all_were_right(load)
    for url in three.urls:
        with Triton.at(url) as triton:
            assert triton.total(MODEL).requests > 10


def test_one_that_is_killed_under_load_costs_nobody_an_answer_and_comes_back(three: Three) -> None:
    with three.under_load(4) as load:
        time.sleep(0.5)
        os.kill(three.triton_pid(1), signal.SIGKILL)
        three.up.wait_for(f"Triton at {three.urls[1]} ended with status -9; starting it again")
        wait_until(lambda: three.answering() == [True] * 3, 60, "it did not come back")
        time.sleep(0.5)
    three.all_were_right(load)
    # Those that the app does not need are loaded after that.
    wait_until(lambda: http_ok(f"http://{three.urls[1]}/v2/models/digits/ready"), 60, "digits came not back")


def test_a_config_changes_on_all_and_check_compares_their_answers(three: Three) -> None:
    with three.under_load(2) as load:
        three.gourmet("config", MODEL, "--instances", "1")
        assert three.instances() == [1, 1, 1]
        three.gourmet("config", MODEL, "--reset")
        assert three.instances() == [2, 2, 2]
        assert "3 servers answer 16 examples alike" in three.gourmet(
            "check", MODEL, "--every-replica", "--data", str(photos(three)), "--missing-classes"
        )
    three.all_were_right(load)


def photos(three: Three) -> Path:
    """A folder of labelled ones, made up."""
    folder = three.up.tmp.parent / "photos" / SYSTEM.labels[0]
    folder.mkdir(parents=True, exist_ok=True)
    for number, photo in enumerate(SYSTEM.examples(24, 5, (96, 80))):
        (folder / f"{number}.jpg").write_bytes(photo)
    return folder.parent


def second_version(three: Three) -> None:
    """All serve a second version, which is the first once more."""
    model = three.models / MODEL
    shutil.copytree(model / "1", model / ".next")
    (model / ".next").rename(model / "2")
    three.gourmet("config", MODEL, "--reset")
    assert three.versions() == ["2", "2", "2"]


def test_a_version_rolls_out_and_back_over_all_without_a_failed_request(three: Three) -> None:
    with three.under_load(2) as load:
        second_version(three)
        said = three.gourmet("rollback", MODEL, "--to", str(three.models))
        assert "(3 servers, one after another)" in said
        assert three.versions() == ["1", "1", "1"]
    three.all_were_right(load)


def test_a_rollback_that_the_third_cannot_take_is_taken_back_on_all(three: Three) -> None:
    second_version(three)
    to = ("rollback", MODEL, "--to", str(three.models))
    said = three.gourmet(*to, "--url", ",".join([*three.urls[:2], "127.0.0.1:1"]), status=1)
    assert "127.0.0.1:1, number 3 of 3: no Triton answers at 127.0.0.1:1" in said
    assert versions(three.models / MODEL) == (1, 2)
    assert three.versions() == ["2", "2", "2"]
    three.gourmet(*to)
    assert three.versions() == ["1", "1", "1"]


def test_doctor_asks_each_and_what_measures_looks_at_the_first(three: Three) -> None:
    said = json.loads(three.gourmet("doctor", "--json"))
    for url in three.urls:
        assert any(line["check"] == "answers" and line["cause"].startswith(f"{url}: ") for line in said)
    assert three.alike(said) == [("ok", "3 Tritons serve the same models, versions and configs")]
    assert f"of 3 servers {three.urls[0]} is asked" in three.gourmet("list")


def test_doctor_names_the_one_that_serves_another_config(three: Three) -> None:
    three.gourmet("config", "digits", "--instances", "3", "--url", three.urls[1])
    ((level, words),) = three.alike(json.loads(three.gourmet("doctor", "--json")))
    assert level == "warn"
    assert words.startswith("digits is version 1 (3 instances")
    assert f"at {three.urls[1]}, and version 1 (" in words
    three.gourmet("config", "digits", "--reset", "--url", ",".join(three.urls))
    ((level, _),) = three.alike(json.loads(three.gourmet("doctor", "--json")))
    assert level == "ok"


def test_ctrl_c_ends_all_of_them_and_leaves_nothing(three: Three) -> None:
    three.up.ended()  # which notes the folders
    assert three.up.stop() < 10
    assert three.up.process.returncode == 0
    wait_until(lambda: not three.up.processes(), 5, f"still running: {three.up.processes()}")
    assert not three.up.leftovers()
