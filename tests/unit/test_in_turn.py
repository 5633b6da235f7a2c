"""What changes a model of several servers changes one after another, and all go back where one fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.listener import Listen, Listener, answered, http, listen
from support.no_stack import no_stack

from gourmet.cli import main
from gourmet.commands.load_and_ask import in_turn
from gourmet.commands.running import unload
from gourmet.errors import GourmetError
from gourmet.repository import versions

__all__ = ["listen", "no_stack"]
REFUSED = http({"error": "no such engine here"}, "400 Bad Request")


def gourmet(*words: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in words])


@pytest.fixture
def servers(listen: Listen) -> list[Listener]:
    """Three that serve version 1 of a model `m` of no system, and load whatever they are told."""
    given = {"name": "x", "datatype": "FP32", "shape": [4]}
    output = {"name": "PROBABILITIES", "datatype": "FP32", "shape": [2]}
    config = {"name": "m", "backend": "python", "max_batch_size": 0, "instance_group": [{"count": 1}]}
    script = {
        "/load": http({}),
        "/unload": http({}),
        "/index": http([{"name": "m", "version": "1", "state": "READY"}]),
        "/config": http(config),
        "/ready": http({}),
        "/stats": http({"model_stats": [{"name": "m", "version": "1", "inference_stats": {}}]}),
        "/infer": answered([0.5, 0.5]),
        "/models/m": http({"name": "m", "versions": ["1"], "inputs": [given], "outputs": [output]}),
    }
    return [listen(dict(script)) for _ in range(3)]


def url(servers: list[Listener]) -> str:
    return ",".join(each.url for each in servers)


def loads(server: Listener) -> list[int]:
    """Of each config that it was told to load, how many instances it has; 0 for what lies on disk."""
    found = []
    for path, body in zip(server.asked, server.bodies, strict=True):
        if path.endswith("/load"):
            parameters = json.loads(body or "{}").get("parameters", {})
            config = json.loads(parameters.get("config", "{}"))
            found.append(sum(group.get("count", 0) for group in config.get("instance_group", [])))
    return found


def asked(server: Listener) -> int:
    return sum(path.endswith("/infer") for path in server.asked)


def test_a_config_goes_to_one_server_after_another_and_each_is_asked(servers: list[Listener]) -> None:
    done = gourmet("config", "m", "--instances", "2", "--url", url(servers), "--yes")
    assert done.exit_code == 0, done.output
    assert [loads(each) for each in servers] == [[2], [2], [2]]
    assert [asked(each) for each in servers] == [1, 1, 1]


@pytest.mark.parametrize("fault", ["/load", "/infer"], ids=["refuses it", "cannot answer with it"])
def test_where_one_refuses_or_cannot_answer_those_before_it_go_back_and_none_behind_it_changes(
    servers: list[Listener], fault: str
) -> None:
    servers[1].script[fault] = REFUSED
    done = gourmet("config", "m", "--instances", "2", "--url", url(servers), "--yes")
    assert done.exit_code == 1
    assert f"{servers[1].url}, number 2 of 3: " in done.output
    assert [loads(each) for each in servers] == [[2, 1], [2, 1], []]


def test_one_server_alone_is_asked_nothing_more_than_to_load(servers: list[Listener]) -> None:
    done = gourmet("config", "m", "--instances", "2", "--url", servers[0].url)
    assert done.exit_code == 0, done.output
    assert (loads(servers[0]), asked(servers[0])) == ([2], 0)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With two versions of the model, of which the first serves."""
    for number in ("1", "2"):
        (tmp_path / "models" / "m" / number).mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('name: "m"\nbackend: "python"\n')
    return tmp_path / "models"


def test_a_rollback_is_taken_back_everywhere_where_one_server_does_not_answer(
    servers: list[Listener], repository: Path
) -> None:
    servers[1].script["/infer"] = REFUSED
    done = gourmet("rollback", "m", "--url", url(servers), "--repository", repository)
    assert done.exit_code == 1
    assert f"{servers[1].url}, number 2 of 3: " in done.output
    assert versions(repository / "m") == (1, 2)
    # The third, which never heard of it, loads what it has, which changes nothing.
    assert [len(loads(each)) for each in servers] == [2, 2, 1]
    assert [asked(each) for each in servers] == [1, 1, 0]


def test_a_rollback_that_all_answer_is_said_once(servers: list[Listener], repository: Path) -> None:
    done = gourmet("rollback", "m", "--url", url(servers), "--repository", repository)
    assert done.exit_code == 0, done.output
    assert "m answers (3 servers, one after another)\n" in done.output
    assert versions(repository / "m") == (1,)


def test_one_that_cannot_be_asked_keeps_no_other_from_unloading(servers: list[Listener]) -> None:
    servers[0].script["/unload"] = REFUSED
    with pytest.raises(GourmetError, match="no such engine here"):
        unload("m", url(servers))
    assert all(any(path.endswith("/unload") for path in each.asked) for each in servers)


def test_ctrl_c_goes_back_too_and_who_cannot_go_back_keeps_no_other_from_it() -> None:
    went_back = []

    def change(server: str) -> str:
        if server == "c":
            raise KeyboardInterrupt
        return server

    def back(server: str) -> None:
        went_back.append(server)
        raise GourmetError("it is away")

    with pytest.raises(KeyboardInterrupt):
        in_turn("a,b,c,d", change, back)
    assert went_back == ["c", "b", "a"]
    assert in_turn("a,b", change, back) == ["a", "b"]


def test_every_replica_answers_alike_or_the_one_that_does_not_is_named(servers: list[Listener]) -> None:
    servers[2].script["/infer"] = answered([0.9, 0.1], "2")
    done = gourmet("check", "m", "--every-replica", "--limit", "1", "--url", url(servers))
    assert done.exit_code == 1
    said = f"{servers[2].url} (version 1) answers 1 of 1 examples otherwise than {servers[0].url} (version 1)"
    assert said in done.output
    done = gourmet("check", "m", "--every-replica", "--limit", "1", "--url", url(servers[:2]))
    assert f"2 servers answer 1 examples alike: {servers[0].url}, {servers[1].url}" in done.output
    done = gourmet("check", "m", "--every-replica", "--url", servers[0].url)
    assert "give several to --url" in done.output
