"""A model's versions: the next one of every kind of system, and the way back, whole or not at all."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from support.cli import gourmet, said
from support.onnx_network import network
from support.stopping import everything

from gourmet.doctor import Examined, manifests
from gourmet.errors import GourmetError
from gourmet.repository.config_file import LABELS_FILE, ConfigFile, model_config, tensor
from gourmet.repository.deploy import deploy, recalibrate, rollback, staged
from gourmet.repository.gate import Check, Deployment, ModelFile, Target
from gourmet.repository.lock import UNDO_FILE, all_or_nothing, changing, tidied, undo
from gourmet.repository.models import RepositoryError, read_config
from gourmet.repository.versions import (
    newest_intact_version,
    newest_version,
    version_numbers,
    withdrawn_versions,
)
from gourmet.served.manifest import ManifestError, sha256


@pytest.fixture
def no_keys(systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs have folders of their own, where no stack runs."""
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    # It knows the systems that there were when it was imported, which may have been in another test.
    monkeypatch.delitem(sys.modules, "gourmet.commands.deploy", raising=False)


def put(model: Path, number: int, at: str, **about: object) -> None:
    """A version as `gourmet deploy` leaves it."""
    (model / str(number)).mkdir(parents=True)
    if number == 1:
        (model / "config.pbtxt").write_text(f'name: "{model.name}"\nbackend: "onnxruntime"\n')
    file = model / str(number) / "model.onnx"
    file.write_text(f"weights {number}")
    says = {"file": file.name, "sha256": sha256(file), "network": {"system": "soups"}, "deployed": {"at": at}}
    (file.parent / "manifest.json").write_text(json.dumps({**says, **about}))


def test_versions_are_ordered_as_numbers_and_a_damaged_one_does_not_serve(tmp_path: Path) -> None:
    model = tmp_path / "m"
    for number in (1, 9, 10):
        put(model, number, "")
    (model / "11").touch()  # a file does not count as a version
    (model / "notes").mkdir()
    assert version_numbers(model) == (1, 9, 10)
    assert newest_version(model) == newest_intact_version(model) == model / "10"
    (model / "10" / "model.onnx").write_text("others")
    assert newest_intact_version(model) == model / "9"
    for number in (10, 9):
        (model / str(number)).rename(model / f".withdrawn-{number}")
    assert [path.name for path in withdrawn_versions(model)] == [".withdrawn-9", ".withdrawn-10"]
    with pytest.raises(RepositoryError, match="has no version"):
        newest_version(tmp_path / "none")


@pytest.mark.promise("README: *Undo* goes back")
@pytest.mark.usefixtures("no_keys")
def test_a_system_goes_back_from_its_last_deployment_in_one_step(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("broth", "stew", "chili"):
        put(models / name, 1, "2026-01-01T00:00:00.000+00:00")
        put(models / name, 2, "2026-01-02T00:00:00.000+00:00")
    put(models / "stew", 3, "2026-01-03T00:00:00.000+00:00")
    put(models / "salad", 1, "2026-01-03T00:00:00.000+00:00")  # it came with that deployment
    put(models / "others", 1, "2026-01-09T00:00:00.000+00:00", network={"system": "bread"})
    for left in ({"stew": 2, "broth": 2, "chili": 2}, {"stew": 1, "broth": 1, "chili": 1}):
        output = said("rollback", "soups", "--to", models)
        assert {name: version_numbers(models / name)[-1] for name in left} == left
    assert "is the latest; no Triton was asked" in output
    before = everything(models)
    assert "has no version before 1" in said("rollback", "soups", "--to", models, status=1)
    assert everything(models) == before
    assert version_numbers(models / "others") == (1,)


def test_a_rollback_removes_everything_that_a_version_brought(tmp_path: Path) -> None:
    results = []
    for kind, labels in (("FP32", "ab"), ("FP16", "cd")):
        tensors = (tensor("x", kind, [3]), tensor("y", kind, [2], labels_file=LABELS_FILE))
        config = model_config("m", "pytorch", 8, *tensors, instances=1, parameters={})
        build = partial(_written, kind)
        target = Target("m", [ModelFile("model.pt", build)], config, labels, replaces=True)
        deploy(Deployment({"pt": target}), "pt", tmp_path)
        results.append(everything(tmp_path))
    assert b"TYPE_FP16" in (results[1]["m/config.pbtxt"] or b"")
    assert rollback([tmp_path / "m"]) == {tmp_path / "m": (2, 1)}
    assert served(tmp_path) == results[0]
    assert rollback([tmp_path / "m"], undo=True) == {tmp_path / "m": (1, 2)}
    assert everything(tmp_path) == results[1]
    rollback([tmp_path / "m"])
    deploy(Deployment({"pt": target}), "pt", tmp_path)
    assert not withdrawn_versions(tmp_path / "m"), "a deployment ends the time for --undo"


def served(repository: Path) -> dict[str, bytes | None]:
    """Everything but the versions that were withdrawn."""
    return {name: content for name, content in everything(repository).items() if ".withdrawn-" not in name}


def _written(text: str, path: Path) -> dict[str, Any]:
    path.write_text(text)
    return {}


@pytest.mark.promise("models: `gourmet rollback NAME --undo` brings the withdrawn version back")
@pytest.mark.usefixtures("no_keys")
def test_rollbacks_are_undone_one_by_one_with_all_models_of_a_deployment(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name, last in (("broth", 2), ("stew", 3)):
        for number in range(1, last + 1):
            put(models / name, number, f"2026-01-0{number}", config={"max_batch_size": number})

    def latest() -> list[tuple[int, int]]:
        folders = (models / "broth", models / "stew")
        return [(version_numbers(folder)[-1], read_config(folder).max_batch_size) for folder in folders]

    for _ in range(2):
        said("rollback", "soups", "--to", models)
    assert latest() == [(1, 1), (1, 1)]
    for stew in (2, 3):
        output = said("rollback", "soups", "--undo", "--to", models)
        assert latest() == [(2, 2), (stew, stew)]
    assert "stew: version 3 is back, it is the latest; no Triton was asked" in output
    refusal = said("rollback", "soups", "--undo", "--to", models, status=1)
    assert "has no withdrawn version of 'soups'" in refusal


def test_the_next_version_follows_the_latest_and_a_refusal_changes_nothing(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        put(tmp_path / "broth", number, str(number), config={"max_batch_size": number})
    target = Target("broth", [ModelFile("model.onnx", partial(_written, "new"))])
    before = everything(tmp_path)

    def refuse(version: Path) -> None:
        assert (version / "model.onnx").read_text() == "new"
        raise GourmetError("does not answer")

    for number in (3, 2, None):
        with pytest.raises(GourmetError, match="does not answer"):
            deploy(Deployment({"onnx": target}), "onnx", tmp_path, number, refuse)
        assert everything(tmp_path) == before
    assert rollback([tmp_path / "broth"]) == {tmp_path / "broth": (3, 2)}
    assert read_config(tmp_path / "broth").max_batch_size == 2, "not the first one's"
    shutil.rmtree(tmp_path / "broth" / "1")
    folder, _ = deploy(Deployment({"onnx": target}), "onnx", tmp_path)
    assert folder.name == "3"


def test_a_version_has_no_file_of_the_one_before_that_its_own_export_did_not_write(tmp_path: Path) -> None:
    def write(passes: bool) -> Path:
        def private(path: Path) -> dict[str, Any]:
            path.touch(mode=0o600)
            return {}

        files = [
            ModelFile("model.onnx", private),
            ModelFile("more.onnx", private, lambda _path: [Check("more", "", "", passes)], is_optional=True),
        ]
        put(tmp_path / "broth", 1, "1") if passes else None
        return deploy(Deployment({"onnx": Target("broth", files)}), "onnx", tmp_path)[0]

    for passes, names in ((True, {"model.onnx", "more.onnx"}), (False, {"model.onnx"})):
        version = write(passes)
        assert {path.name for path in version.glob("*.onnx")} == names
        modes = {oct(path.stat().st_mode & 0o777) for path in version.glob("*.onnx")}
        assert modes == {"0o644"}, "a Triton of another user reads it"
    nothing = Target("broth", [ModelFile("model.onnx", lambda _path: {})])
    with pytest.raises(FileNotFoundError):
        deploy(Deployment({"onnx": nothing}), "onnx", tmp_path)


def test_the_config_is_that_of_the_latest_version_though_an_older_one_is_replaced(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path, number, str(number))
    config = read_config(tmp_path)
    with staged(tmp_path, ["model.onnx"], 1, texts={"config.pbtxt": "max_batch_size: 7"}) as (aside, _):
        (aside / "model.onnx").write_text("new")
    assert (tmp_path / "1" / "model.onnx").read_text() == "new"
    assert read_config(tmp_path) == config


def test_a_version_takes_no_number_of_the_one_before_and_none_that_is_not_finite(tmp_path: Path) -> None:
    before = ConfigFile(tmp_path, "", {"parameters": {"other": {"string_value": "stays"}}})
    calibrated = before.with_version({"temperature": 1.25, "threshold": 0.4}, {})
    assert calibrated.generated["parameters"].keys() == {"other", "temperature", "threshold"}
    assert calibrated.with_version({}, {}).generated == before.generated
    for number in (math.nan, math.inf):
        with pytest.raises(RepositoryError, match=r"temperature of .* is not a finite"):
            before.with_version({"temperature": number}, {})


def test_a_withdrawn_version_does_not_come_back_beside_a_later_one(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path, number, str(number))
    rollback([tmp_path])
    put(tmp_path, 3, "by hand")
    with pytest.raises(RepositoryError, match="no withdrawn version"):
        rollback([tmp_path], undo=True)


@pytest.fixture
def two_of_two(tmp_path: Path) -> list[Path]:
    """Two models with two versions each."""
    models = [tmp_path / "models" / name for name in ("broth", "stew")]
    for model in models:
        for number in (1, 2):
            put(model, number, str(number), config={"max_batch_size": number}, labels=[f"soup {number}"])
    return models


def test_where_the_version_before_does_not_answer_all_is_as_it_was(two_of_two: list[Path]) -> None:
    before = everything(two_of_two[0].parent)

    def refuse(served: Mapping[Path, int]) -> None:
        assert served == dict.fromkeys(two_of_two, 1)
        assert [read_config(model).max_batch_size for model in two_of_two] == [1, 1]
        assert (two_of_two[1] / "labels.txt").read_text() == "soup 1\n"
        raise GourmetError("does not answer")

    with pytest.raises(GourmetError, match="does not answer"):
        rollback(two_of_two, refuse)
    assert everything(two_of_two[0].parent) == before


def test_a_rollback_to_a_changed_version_is_refused(two_of_two: list[Path]) -> None:
    (two_of_two[1] / "1" / "model.onnx").write_text("cut sho")
    before = everything(two_of_two[0].parent)
    with pytest.raises(ManifestError, match="not the deployed file"):
        rollback(two_of_two)
    assert everything(two_of_two[0].parent) == before


def test_a_verb_that_is_killed_before_any_write_changed_all_or_nothing(two_of_two: list[Path]) -> None:
    repository = two_of_two[0].parent
    tensors = (tensor("x", "FP16", [3]), tensor("y", "FP16", [2], labels_file=LABELS_FILE))
    config = model_config("salad", "onnxruntime", 8, *tensors, instances=1, parameters={})
    soup = Target("broth", [ModelFile("model.onnx", partial(_written, "new"))])
    salad = dataclasses.replace(soup, model="salad", config=config, labels="ab", replaces=True)

    def deployed(at: str, target: Target = soup, number: int | None = None) -> None:
        deploy(Deployment({"onnx": target}, {}, {"threshold": 0.3}, at), "onnx", repository, number)

    verbs: dict[str, Callable[[], object]] = {
        "deploy a new model": lambda: deployed("one", salad),
        "calibrate": lambda: recalibrate(two_of_two[:1], {"threshold": 0.87}, {}),
        "roll back": lambda: rollback(two_of_two),
        "undo that": lambda: rollback(two_of_two[1:], undo=True),
        "replace": lambda: deployed("two", number=1),
    }
    for name, verb in verbs.items():
        before, ends = everything(repository), list[dict[str, bytes | None]]()
        while killed_before_write(len(ends), verb):
            with changing(repository, pytest.fail):
                for model in repository.iterdir():
                    tidied(model)
            ends.append(everything(repository))
            if ends[-1] != before:
                put_back(repository, before)
        done = everything(repository)
        assert len(ends) > 5, name
        assert done != before, name
        assert all(end in (before, done) for end in ends), name
        assert ends[0] == before, name


def killed_before_write(number: int, verb: Callable[[], object]) -> bool:
    """Run the verb in a child that kills itself before that write; return False if it ended before."""
    if not (child := os.fork()):
        writes = itertools.count()

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            is_write = event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir"} or (
                event == "open" and bool(arguments[2] & os.O_CREAT)
            )
            if is_write and next(writes) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        try:
            verb()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def put_back(folder: Path, content: Mapping[str, bytes | None]) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in sorted(content.items()):
        if data is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(data)


@pytest.mark.promise(
    "models: If one is killed, the next verb or `gourmet up` first puts back what was there before"
)
@pytest.mark.usefixtures("no_keys")
def test_a_verb_first_puts_back_what_a_killed_one_changed(two_of_two: list[Path], subject: Examined) -> None:
    repository = two_of_two[0].parent
    before = everything(repository)

    def killed_rollback() -> None:
        if not (child := os.fork()):
            rollback(two_of_two, lambda _: os.kill(os.getpid(), signal.SIGKILL))
            os._exit(0)
        os.waitpid(child, 0)
        assert everything(repository) != before

    killed_rollback()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = gourmet("up", "--model-repository", repository, "--http-port", taken.getsockname()[1])
    assert done.exit_code != 0, "the port is taken"
    assert everything(repository) == before
    killed_rollback()
    (warning, *_) = manifests(dataclasses.replace(subject, repositories=(repository,)))
    assert warning.level == "warn"
    assert f"a verb changes {repository}, or was killed while it did" in warning.cause
    output = said("rollback", "soups", "--to", repository)
    assert "a verb was killed while it changed broth, stew" in output
    assert "broth: version 2 is withdrawn, version 1 is the latest" in output, "one step, not two"


def onnx_file(path: Path, *, side: int = 32, given: str = "x", output: str = "y") -> Path:
    model = network(("n", 3, side, side))
    graph = model.graph
    graph.input[0].name = graph.node[0].input[0] = given
    graph.output[0].name = graph.node[-1].output[0] = output
    onnx.save(model, path)
    return path


@pytest.fixture
def colours(no_keys: None, tmp_path: Path) -> Path:
    """The repository of a system that came as ONNX."""
    first = onnx_file(tmp_path / "first.onnx")
    labels = ("--labels", "red,green,blue")
    said("new", "colours", *labels, "--weights", first, "--to", tmp_path / "models")
    return tmp_path / "models"


def test_a_system_that_came_as_onnx_has_a_config_a_version(colours: Path, tmp_path: Path) -> None:
    model = colours / "colours_onnx"
    mine = (model / "config.pbtxt").read_text().replace("count: 2", "count: 3")
    (model / "config.pbtxt").write_text(mine)
    before = everything(colours)
    second = onnx_file(tmp_path / "second.onnx", given="another_name")
    said("deploy", "colours", "--weights", second, "--to", colours)
    assert sorted(path.name for path in (model / "2").iterdir()) == ["manifest.json", "model.onnx"]
    config = read_config(model)
    assert (config.input[0].name, config.instance_group[0].count) == ("another_name", 3)
    said("rollback", "colours", "--to", colours)
    assert served(colours) == before


@pytest.mark.slow
def test_two_deploys_at_once_are_two_versions(colours: Path, tmp_path: Path) -> None:
    program, both = Path(sys.executable).with_name("gourmet"), []
    for name in ("second.onnx", "third.onnx"):
        command = [program, "deploy", "colours", "--weights", onnx_file(tmp_path / name), "--to", colours]
        both.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    printed = [process.communicate()[0].splitlines() for process in both]
    folders = sorted(line for lines in printed for line in lines if line.startswith(str(colours)))
    assert folders == [str(colours / "colours_onnx" / number) for number in "23"]
    assert version_numbers(colours / "colours_onnx") == (1, 2, 3)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"side": 64}, "input_size 64, not 32"),
        ({"output": "others"}, "logit_outputs ('others',), not ('y',)"),
    ],
)
def test_a_file_that_the_description_does_not_fit_is_no_next_version(
    colours: Path, tmp_path: Path, other: dict[str, Any], says: str
) -> None:
    before, file = everything(colours), onnx_file(tmp_path / "o.onnx", **other)
    assert says in said("deploy", "colours", "--weights", file, "--to", colours, status=2)
    output = gourmet("deploy", "colours", "--weights", "best.pth", "--data", tmp_path, "--to", colours).output
    assert "gourmet deploy colours --weights FILE" in output
    assert everything(colours) == before


# Two verbs at once
GOURMET = Path(sys.executable).with_name("gourmet")
# Takes the lock, says so, and holds it until a line comes.
HOLDER = """
import sys
from functools import partial
from pathlib import Path
from gourmet.repository.lock import changing
with changing(Path(sys.argv[1]), partial(print, flush=True)):
    print("has it", flush=True)
    sys.stdin.readline()
    Path(sys.argv[1], "of the first").touch()
"""


def holder(repository: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", HOLDER, str(repository)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "has it\n"
    return process


@pytest.mark.promise("models: Verbs that change one repository wait for each other")
def test_a_second_writer_waits_and_sees_the_first_one_s_change(tmp_path: Path) -> None:
    first = holder(tmp_path)
    lines: list[str] = []

    def say(words: str) -> None:
        lines.append(words)
        threading.Thread(target=first.communicate, args=("\n",)).start()

    with changing(tmp_path, say):
        assert (tmp_path / "of the first").exists()
    assert lines == [f"another gourmet changes {tmp_path}: waiting until it has ended"]


def test_a_lock_times_out_and_a_killed_holder_frees_it(tmp_path: Path) -> None:
    first = holder(tmp_path)
    with pytest.raises(RepositoryError, match="still changes"), changing(tmp_path, print, 0):
        pass
    first.kill()
    first.communicate()
    with changing(tmp_path, pytest.fail, 0):
        pass


def test_the_one_that_waits_gets_a_new_repository_whose_first_verb_wrote_nothing(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    with changing(repository, pytest.fail):
        second = subprocess.Popen(
            [sys.executable, "-P", "-c", HOLDER, str(repository)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert second.stdout
        assert "waiting until it has ended" in second.stdout.readline()
    assert second.communicate("\n")[0] == "has it\n"
    assert (repository / "of the first").exists()


def test_a_repository_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RepositoryError, match="file/models cannot be written"),
        changing(tmp_path / "file" / "models", pytest.fail),
    ):
        pass


def test_a_change_that_is_interrupted_is_put_back_and_a_whole_one_stays(tmp_path: Path) -> None:
    model = tmp_path / "m"
    for folder, text in (("1", "one"), ("next", "two")):
        (model / folder).mkdir(parents=True)
        (model / folder / "weights").write_text(text)
    (model / "config.pbtxt").write_text("old")
    renames = [(model / "1", model / "before"), (model / "next", model / "1")]
    texts = {model / "config.pbtxt": "new", model / "labels.txt": "rose"}
    seen = []

    def interrupted() -> None:
        with all_or_nothing([model], renames, texts):
            seen.append(((tmp_path / UNDO_FILE).exists(), (model / "1" / "weights").read_text()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [(True, "two")], "there is what the next verb needs to put it back"
    assert (model / "1" / "weights").read_text() == "one"
    assert (model / "next" / "weights").read_text() == "two"
    assert (model / "config.pbtxt").read_text() == "old"
    assert not (model / "labels.txt").exists()
    with all_or_nothing([model], renames, texts):
        pass
    assert not (tmp_path / UNDO_FILE).exists()
    assert undo(tmp_path) == []
    assert (model / "1" / "weights").read_text() == "two"
    assert (model / "labels.txt").read_text() == "rose"


def test_what_a_killed_verb_left_is_removed_and_a_link_without_its_target(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (target / "1").mkdir(parents=True)
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / ".next.77" / "1").mkdir(parents=True)
    (model / ".old-2").symlink_to(target)
    assert tidied(model) == (1,)
    assert [path.name for path in model.iterdir()] == ["1"]
    assert (target / "1").is_dir()
