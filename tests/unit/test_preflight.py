from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from gourmet.cli import main
from gourmet.repository.models import DEFAULT_REPOSITORY, RepositoryError
from gourmet.stack import preflight, run_file
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


def free_options() -> list[str]:
    """Every port of a stack, so that none that runs here is in the way."""
    names = "--port", "--http-port", "--grpc-port", "--metrics-port"
    return [
        word for name, port in zip(names, preflight.free_ports(4), strict=True) for word in (name, str(port))
    ]


def of(system: str) -> dict[str, object]:
    return {"parameters": {"system": {"string_value": system}}}


def test_a_port_in_use_is_named_with_the_option_that_changes_it(taken_port: int) -> None:
    with pytest.raises(preflight.NotReadyToStart, match=rf"port {taken_port} .* in use.*--http-port"):
        preflight.check_ports("127.0.0.1", {"--http-port": taken_port})


def test_a_free_port_stays_this_process_s_while_its_server_starts_and_restarts() -> None:
    (port,) = preflight.free_ports(1)
    for _ in range(2):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        preflight.check_ports("127.0.0.1", {"--port": port})
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(server.getsockname()),
            pytest.raises(preflight.NotReadyToStart, match="in use"),
        ):
            preflight.check_ports("127.0.0.1", {"--port": port})


def test_a_second_start_names_the_running_stack_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_file.FOLDER_ENV, str(tmp_path / "keys"))
    (http,) = preflight.free_ports(1)
    own, triton = os.getpid(), f"127.0.0.1:{http}"
    stack = run_file.RunningStack(own, triton, "", "", "http://127.0.0.1:5", [], "explicit")
    with run_file.run_file_for((http,), {"stack": asdict(stack)}):
        message = CliRunner().invoke(main, ["up", "--triton-only", *free_options(), "--http-port", str(http)])
        assert message.exit_code == 1
        assert (
            f"(process {own}, Triton at {triton}, the page http://127.0.0.1:5) and uses port {http}: "
            f"end it with Ctrl-C or `kill {own}`, or choose another port with --http-port"
        ) in message.output
    preflight.check_ports("127.0.0.1", {"--http-port": http})


@pytest.mark.parametrize(
    ("allowed", "refused"), [(64, True), (255, True), (256, False), (resource.RLIM_INFINITY, False)]
)
def test_a_low_limit_on_open_files_is_reported_with_the_command(
    monkeypatch: pytest.MonkeyPatch, allowed: int, refused: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda limit: {resource.RLIMIT_NOFILE: (allowed, 4096)}[limit])
    named = rf"open {allowed} files .*`ulimit -n`.* run `ulimit -n 1024`"
    with pytest.raises(preflight.NotReadyToStart, match=named) if refused else nullcontext():
        preflight.check_open_files()
    if refused:
        assert f"open {allowed} files" in CliRunner().invoke(main, ["up"]).output


def test_a_model_in_two_repositories_is_refused(tmp_path: Path) -> None:
    model(tmp_path / "a", "soup")
    model(tmp_path / "b", "soup")
    with pytest.raises(preflight.NotReadyToStart, match="more than one repository has soup"):
        preflight.check_repositories([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("gone", "does not exist: name a folder"),
        ("", r"has no models: a model is a folder with a config\.pbtxt"),
    ],
)
def test_a_repository_without_models_is_refused(tmp_path: Path, folder: str, says: str) -> None:
    with pytest.raises(RepositoryError, match=says):
        preflight.check_repositories([tmp_path / folder])


def test_the_environment_chooses_the_model_that_answers_the_page() -> None:
    served = {"food_classifier": of("food11"), "food_classifier_onnx": {}}
    chosen = preflight.configured_models({contract.SYSTEM.model_variable: "food_classifier_onnx"}, served)
    assert chosen == {"food11": "food_classifier_onnx"}


@pytest.mark.parametrize(
    ("name", "what"), [("food_clasifier", "not a served model"), ("digits", "a model of the system 'digits'")]
)
def test_an_unusable_model_is_refused_with_the_usable_ones(name: str, what: str) -> None:
    served = preflight.check_repositories([DEFAULT_REPOSITORY])
    with pytest.raises(
        preflight.NotReadyToStart, match=f"is '{name}', which is {what}: choose one of .*food_cl"
    ):
        preflight.configured_models({contract.SYSTEM.model_variable: name}, served)


def test_a_model_for_study_is_held_back_unless_the_app_asks_it(tmp_path: Path) -> None:
    for name in ("asked", "other", "study"):
        model(tmp_path, name)
    study = 'parameters [ { key: "load" value: { string_value: "asked" } } ]'
    (tmp_path / "study" / "config.pbtxt").write_text(f'name: "study" {study}')
    (tmp_path / "other" / "config.pbtxt").write_text('name: "other" broken {')  # which Triton says itself
    served = preflight.check_repositories([tmp_path])
    assert preflight.held_back(served, ["asked"]) == ["study"]
    assert preflight.held_back(served, ["study"]) == []


def test_shipped_models_that_no_page_uses_are_held_back() -> None:
    served = preflight.check_repositories([DEFAULT_REPOSITORY])
    configured = preflight.configured_models({}, served).values()
    held_back = preflight.held_back(served, configured)
    assert {"onnx-model", "onnx-mnist-cpu", "translator_bls", "captioner", "captioner_stream"} <= set(
        held_back
    )
    assert not set(configured) & set(held_back)
    chosen = preflight.configured_models({"CAPTIONER_MODEL_NAME": "captioner"}, served)
    assert "captioner" not in preflight.held_back(served, chosen.values())


@pytest.mark.parametrize(
    ("arguments", "env", "says"),
    [
        (("--triton-only", "--web-only"), {}, "leave nothing to start: give one or neither"),
        ((), {contract.SYSTEM.model_variable: "food_clasifier"}, "food_classifier, food_classifier_int8"),
        (("--port", "{taken}"), {}, "in use or cannot be bound"),
        (("--triton-only", "--http-port", "{taken}"), {}, "choose another port with --http-port"),
    ],
)
def test_up_refuses_before_anything_starts(
    taken_port: int, arguments: tuple[str, ...], env: dict[str, str], says: str
) -> None:
    words = [word.format(taken=taken_port) for word in arguments]
    ran = CliRunner().invoke(main, ["up", *free_options(), *words], env=env)
    assert ran.exit_code in (1, 2)
    assert says in ran.output
