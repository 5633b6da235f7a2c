from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from gourmet import repository
from gourmet.repository import RepositoryError
from gourmet.serving import preflight
from gourmet.systems.food11 import contract


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def model(repository: Path, name: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"')


def of(system: str) -> dict[str, object]:
    return {"parameters": {"system": {"string_value": system}}}


def test_a_port_in_use_is_named_with_the_option_that_changes_it(taken_port: int) -> None:
    with pytest.raises(preflight.NotReadyToStart, match=rf"port {taken_port} .* in use.*--http-port"):
        preflight.check_ports("127.0.0.1", {"--http-port": taken_port})


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(preflight.NotReadyToStart, match=r"192\.0\.2\.1"):
        preflight.check_ports("192.0.2.1", {"--port": 45678})


@pytest.mark.parametrize(
    ("hosts", "is_so"),
    [
        (("127.0.0.1", "127.0.0.2", "::1", "localhost"), True),
        (("0.0.0.0", "::", "", "192.0.2.1", "example.org"), False),
    ],
)
def test_which_addresses_are_of_this_machine_alone(hosts: tuple[str, ...], is_so: bool) -> None:
    assert {preflight.is_loopback(host) for host in hosts} == {is_so}


def test_free_ports_pass() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    preflight.check_ports("127.0.0.1", {"--port": port})


@pytest.mark.parametrize(
    ("allowed", "refused"), [(64, True), (255, True), (256, False), (resource.RLIM_INFINITY, False)]
)
def test_a_limit_on_open_files_is_named_with_what_raises_it(
    monkeypatch: pytest.MonkeyPatch, allowed: int, refused: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: {resource.RLIMIT_NOFILE: (allowed, 4096)}[which])
    named = rf"have {allowed} files .*`ulimit -n`.* run `ulimit -n 1024`"
    with pytest.raises(preflight.NotReadyToStart, match=named) if refused else nullcontext():
        preflight.check_open_files()


def test_a_model_in_two_repositories_is_refused(tmp_path: Path) -> None:
    model(tmp_path / "a", "soup")
    model(tmp_path / "b", "soup")
    with pytest.raises(preflight.NotReadyToStart, match="more than one repository has soup"):
        preflight.check_repositories([tmp_path / "a", tmp_path / "b"])


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=f"no model repository found at {tmp_path / 'gone'}"):
        preflight.check_repositories([tmp_path / "gone"])


def test_an_empty_repository_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"holds no models: each is a folder with a config\.pbtxt"):
        preflight.check_repositories([tmp_path])


def test_the_environment_chooses_the_model_that_answers_the_page() -> None:
    served = {"food_classifier": of("food11"), "food_classifier_onnx": {}}
    chosen = preflight.configured_models({contract.SYSTEM.model_variable: "food_classifier_onnx"}, served)
    assert chosen == {"food11": "food_classifier_onnx"}


def test_an_unknown_model_is_refused_with_the_served_names() -> None:
    with pytest.raises(
        preflight.NotReadyToStart, match="'food_clasifier', which is not a served model: choose one of a, b"
    ):
        preflight.configured_models({contract.SYSTEM.model_variable: "food_clasifier"}, {"a": {}, "b": {}})


def test_a_model_of_another_system_is_refused_with_those_of_its_own() -> None:
    served = preflight.check_repositories([repository.DEFAULT])
    with pytest.raises(
        preflight.NotReadyToStart,
        match="FOOD11_MODEL_NAME is 'digits', which is a model of the system 'digits': choose one of food_cl",
    ):
        preflight.configured_models({contract.SYSTEM.model_variable: "digits"}, served)


def test_a_repository_without_food_is_served_all_the_same() -> None:
    assert preflight.configured_models({}, {"digits_of_somebody": of("digits")}) == {}


def test_a_model_that_is_loaded_late_is_not_started_with_unless_the_app_asks_it(tmp_path: Path) -> None:
    for name in ("asked", "other", "late"):
        model(tmp_path, name)
    late = 'parameters [ { key: "load" value: { string_value: "late" } } ]'
    (tmp_path / "late" / "config.pbtxt").write_text(f'name: "late" {late}')
    (tmp_path / "other" / "config.pbtxt").write_text('name: "other" broken {')  # which Triton says itself
    served = preflight.check_repositories([tmp_path])
    assert preflight.loaded_early(served, ["asked"]) == ["asked", "other"]
    assert preflight.loaded_early(served, ["late"]) == []  # Triton's own word for all of them


def test_what_waits_for_the_shipped_models_is_what_the_pages_ask() -> None:
    served = preflight.check_repositories([repository.DEFAULT])
    asked = preflight.configured_models({}, served).values()
    early = preflight.loaded_early(served, asked)
    assert set(asked) <= set(early) < set(served)
