"""Verbs with the address of a remote Triton act on that server and its repository only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.listener import Listen, http, listen
from support.no_stack import no_stack, stack
from support.no_stack import runs as runs_in_block
from support.stopping import everything

from gourmet.bench.workload import Addresses, wire_for
from gourmet.cli import main
from gourmet.errors import UsageError
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.repository.versions import version_numbers
from gourmet.stack.run_file import RunningStack
from gourmet.triton_client.errors import TritonUnreachable

__all__ = ["listen", "no_stack"]


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


Runs = Callable[[RunningStack], None]


@pytest.fixture
def runs() -> Iterator[Runs]:
    with contextlib.ExitStack() as kept:

        def run(running: RunningStack) -> None:
            kept.enter_context(runs_in_block(running))

        yield run


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The addresses and operations of the requests, which no server answers."""
    seen: list[tuple[str, str]] = []

    def call(self: Any, operation: str, *_: object) -> None:
        seen.append((self.address, operation))
        raise TritonUnreachable.at(self.address, "it is a test's")

    monkeypatch.setattr("gourmet.triton_client.http.Http.call", call)
    return seen


def two_versions(folder: Path) -> Path:
    """Make a repository whose model m has two versions."""
    for number in ("1", "2"):
        (folder / "m" / number).mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text('name: "m"\nbackend: "onnxruntime"\n')
    return folder


@pytest.mark.parametrize("by", ["--url", "TRITON_SERVER_URL"])
@pytest.mark.parametrize(
    "verb",
    [["rollback", "m"], ["deploy", "food11"], ["new", "plums", "--labels", "a,b"]],
    ids=lambda verb: verb[0],
)
def test_no_verb_changes_the_checkout_s_repository_for_a_triton_elsewhere(
    runs: Runs,
    loaded: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    systems_folder: Path,
    verb: list[str],
    by: str,
) -> None:
    """Once a rollback for a remote server withdrew the version of the local model."""
    runs(stack(repositories=[str(two_versions(tmp_path / "models"))]))
    before = everything(tmp_path / "models")
    if by == "--url":
        verb = [*verb, "--url", "there:8000"]
    else:
        monkeypatch.setenv(by, "there:8000")
    done = asked(*verb)
    assert (done.exit_code, not loaded) == (2, True), done.output
    assert "the repository of the Triton at there:8000: name its folder with --repository" in done.output
    assert everything(tmp_path / "models") == before
    assert not list(systems_folder.iterdir())
    assert not (tmp_path / "home").exists()


def test_a_named_repository_is_changed_and_its_server_reloads(
    runs: Runs, loaded: list[tuple[str, str]], tmp_path: Path
) -> None:
    runs(stack())
    asked("rollback", "m", "--url", "https://there", "--repository", str(two_versions(tmp_path / "theirs")))
    assert loaded[0] == ("https://there:443", "is_server_live")
    assert {address for address, _ in loaded} == {"https://there:443"}


def test_the_repository_of_another_stack_here_is_its_own(
    runs: Runs, loaded: list[tuple[str, str]], tmp_path: Path
) -> None:
    """The checkout's was changed for it; with two stacks, an address did not say which."""
    runs(stack(9100))
    runs(stack(9200, repositories=[str(two_versions(tmp_path / "theirs").resolve())]))
    done = asked("rollback", "m", "--url", "127.0.0.1:9200", "--repository", str(DEFAULT_REPOSITORY))
    assert "the Triton at 127.0.0.1:9200 does not serve" in done.output
    asked("rollback", "m", "--url", "localhost:9200")
    assert loaded[0] == ("localhost:9200", "is_server_live"), (
        "of which its own repository alone has a model m"
    )
    assert "stacks run here" not in asked("doctor", "--url", "127.0.0.1:9200").output


def test_a_bucket_is_refused_as_a_repository() -> None:
    for verb in (["rollback", "m", "--repository"], ["config", "m", "--reset", "--model-repository"]):
        done = asked(*verb, "s3://bucket/models", "--url", "there:8000")
        assert done.exit_code == 2
        assert "s3://bucket/models is not a folder of this machine: mount it" in done.output


def test_a_reset_takes_no_config_of_the_local_stack_to_a_triton_elsewhere(runs: Runs, listen: Listen) -> None:
    """Once a remote server got the config of the local repository."""
    runs(stack())
    config = http({"name": "digits", "backend": "python", "max_batch_size": 1})
    index = http([{"name": "digits", "version": "1", "state": "READY"}])
    remote = listen({"/config": config, "/index": index, "/load": http({})})
    done = asked("config", "digits", "--reset", "--url", remote.url)
    assert "name that with --repository" in done.output, done.output
    assert done.exit_code == 2
    assert not [path for path in remote.asked if path.endswith("/load")]
    done = asked("config", "digits", "--reset", "--url", remote.url, "--repository", str(DEFAULT_REPOSITORY))
    assert [path for path in remote.asked if path.endswith("/load")], done.output


def test_doctor_looks_at_the_server_that_it_is_given_and_at_nothing_of_this_machine(
    runs: Runs, listen: Listen
) -> None:
    """Once doctor compared the models of a remote server with the local folders."""
    runs(stack())
    remote = listen(
        {
            "/v2": http({"name": "triton", "version": "9"}),
            "/live": http({}),
            "/index": http([{"name": "digits", "version": "0", "state": "READY"}]),
        }
    )
    done = asked("doctor", "--url", remote.url)
    assert {line.split()[1] for line in done.output.splitlines()} == {"server", "served", "answers"}
    assert "latest on disk" not in done.output
    done = asked("doctor", "--url", remote.url, "--repository", str(DEFAULT_REPOSITORY))
    assert {"models", "manifests"} <= {line.split()[1] for line in done.output.splitlines()}
    assert f"gourmet config digits --reset --url {remote.url}" in done.output


def test_a_measurement_over_grpc_alone_and_one_with_secrets_say_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load: Any = type("Load", (), {"protocol": "http", "through": "triton", "model": "m"})
    with pytest.raises(UsageError, match="--protocol grpc"):
        wire_for(Addresses(url="grpc://there:8001"), load, None)  # type: ignore[arg-type]


def test_contradictory_options_for_a_remote_triton_are_refused(tmp_path: Path) -> None:
    assert "--url is the Triton that --web-only asks" in asked("up", "--url", "there:8000").output
    models = str(two_versions(tmp_path))
    assert "--send is for a Triton elsewhere" in asked("rollback", "m", "--to", models, "--send").output
    assert version_numbers(tmp_path / "m") == (1, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SENTENCES", "[[1e999, 1, 1]]"),
        ("SENTENCES", f"[[0, 1, {10**400}]]"),
        ("SENTENCES", "[[0, 1, NaN]]"),
        ("TOKENS", "inf"),
        ("SCORE", "nan"),
        ("SCORE", "much"),
    ],
)
def test_invalid_numbers_from_a_remote_triton_end_a_verb_with_an_error(
    name: str, text: str, listen: Listen, tmp_path: Path
) -> None:
    answer = {"TRANSLATION": "yes", "TOKENS": "1", "SCORE": "-1", "SENTENCES": "[[0, 3, -1]]", name: text}
    texts = {"datatype": "BYTES", "shape": [1, 1]}
    outputs = [{"name": output, **texts, "data": [content]} for output, content in answer.items()]
    about = [{"name": output, **texts} for output in answer]
    remote = listen(
        {
            "/config": http({"name": "translator", "backend": "python", "max_batch_size": 1}),
            "/infer": http({"model_name": "translator", "model_version": "1", "outputs": outputs}),
            "/models/translator": http(
                {"name": "translator", "inputs": [{"name": "TEXT", **texts}], "outputs": about}
            ),
        }
    )
    done = asked("translate", "да", "--out", str(tmp_path / "out.jsonl"), "--url", remote.url)
    assert (done.exit_code, type(done.exception)) == (1, SystemExit), repr(done.exception)
    assert "'translator' does not answer as translators do: " in done.output


@pytest.mark.parametrize("verb", ["list", "config m --raw", "translate да", "doctor"])
def test_control_characters_of_a_remote_triton_do_not_reach_the_terminal(listen: Listen, verb: str) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J"
    names = [
        {"name": name, "datatype": "BYTES", "shape": [-1, 1]} for name in ("TRANSLATION", "TOKENS", "SCORE")
    ]
    text = [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]
    config = {"name": "m", "backend": evil, "platform": evil, "parameters": {evil: {"string_value": evil}}}
    outputs = [
        output | {"shape": [1, 1], "data": [content]}
        for output, content in zip(names, (evil, "1", "1"), strict=True)
    ]
    ready = {"name": f"translator{evil}", "version": "1", "state": "READY", "reason": evil}
    remote = listen(
        {
            "/config": http(config),
            "/index": http([ready, ready | {"name": "m"}]),
            "/stats": http({"model_stats": [{**ready, "inference_stats": {}}]}),
            "/infer": http({"model_name": evil, "model_version": "1", "outputs": outputs}),
            "/models/translator": http({"name": "translator", "inputs": text, "outputs": names}),
            "/v2": http({"name": evil, "version": evil, "extensions": []}),
        }
    )
    done = asked(*verb.split(), "--url", remote.url)
    assert not {"\x1b", "\x07"} & set(done.output), done.output
    assert "owned" in done.output
