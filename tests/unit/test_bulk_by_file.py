"""Bulk work without a Triton: models that generate by their files, and the processes that do it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result
from support import gated_work
from support.eventually import eventually
from support.foreign_modules import sprung, trap
from support.gated_work import GatedWork
from support.triton import MODELS, some_models
from support.up import GOURMET

from gourmet.bulk.asked_model import AskedModel
from gourmet.bulk.generated import GeneratedRows, Generating
from gourmet.bulk.model_file import folder_of, opened
from gourmet.bulk.workers import in_processes
from gourmet.cli import main
from gourmet.contracts import CANARY_PARAMETER, THRESHOLD_PARAMETER, Canary
from gourmet.errors import GourmetError
from gourmet.runtime.decoding import package
from gourmet.systems.captioner.contract import SYSTEM as CAPTIONER
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR
from gourmet.systems.translator.serving import SERVING
from gourmet.tasks.generation.served import whole_answers

TEXTS = [text.decode() for text in TRANSLATOR.examples(24, seed=3)]
NOWHERE = "127.0.0.1:9"


def run(*words: object, given: str | None = None, models: Path = MODELS) -> Result:
    argv = [*words, "--via", "file", "--url", NOWHERE, "--model-repository", models]
    return CliRunner().invoke(main, list(map(str, argv)), input=given)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_without_a_triton_each_text_has_the_row_of_the_loop_that_is_served(tmp_path: Path) -> None:
    lines = [*TEXTS[:20], "", "я" * 2001, *TEXTS[20:]]
    done = run("translate", "--out", tmp_path / "out.jsonl", given="\n".join(lines))
    assert done.exit_code == 0, done.output
    assert "24 of 25 have an answer" in done.output
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["text"] for row in rows] == [line for line in lines if line]
    network = SERVING.open(package.open_version(MODELS / "translator" / "1", {}), 1)
    parts = network.requested({"TEXT": [TRANSLATOR.written(text).encode() for text in TEXTS]})
    right = whole_answers(network, parts, 3, lambda *_: None)
    found = [row for row in rows if not row["error"]]
    assert [row["translation"] for row in found] == [answer.text for answer in right]
    assert [row["score"] for row in found] == [float(np.float32(answer.score)) for answer in right]
    threshold = opened(MODELS / "translator" / "1").info.threshold
    assert [row["sure"] for row in found] == [
        bool((answer.worst or 0.0) >= threshold) and not row["warning"]
        for row, answer in zip(found, right, strict=True)
    ]
    assert {(row["model"], row["version"]) for row in found} == {("translator", "1")}
    (failed,) = (row["error"] for row in rows if row["error"])
    assert "2,000" in failed


@pytest.mark.parametrize("words", [("--via", "file"), ("--engine", "ray")])
def test_a_stream_comes_from_triton_alone(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(CAPTIONER.sample())
    done = CliRunner().invoke(main, ["caption", str(tmp_path), "--stream", *words])
    assert done.exit_code == 2
    assert "leave out --csv, --out, --beams, --via and --engine" in done.output


def opened_rows(models: Path, **options: int) -> GeneratedRows:
    source = AskedModel("translator", "", str(models / "translator" / "1"), 1.0)
    return Generating(source, "translator", "translation", tuple(options.items()), 1).open()


def test_a_package_that_is_not_the_one_that_was_deployed_is_not_asked(tmp_path: Path) -> None:
    models = some_models(tmp_path / "models", "translator")
    with (models / "translator" / "1" / package.FILE).open("ab") as file:
        file.write(b"more")
    with pytest.raises(GourmetError, match="this is not the file that was deployed"):
        opened_rows(models).rows(["Да."])


def test_beams_that_the_loop_has_no_places_for_are_the_reason_in_the_row(tmp_path: Path) -> None:
    models = some_models(tmp_path / "models", "translator")
    config = models / "translator" / "config.pbtxt"
    config.write_text(config.read_text().replace('string_value: "16"', 'string_value: "2"'))
    with closing(opened_rows(models, beams=3)) as rows:
        assert "serve more rows_at_once" in rows.rows(["Да."])[0]["error"]


def test_a_python_model_without_a_package_is_asked_in_triton_alone(tmp_path: Path) -> None:
    (tmp_path / "own" / "1").mkdir(parents=True)
    (tmp_path / "own" / "config.pbtxt").write_text('backend: "python"')
    with pytest.raises(GourmetError, match="own is a program of its own, not a file: ask it with --via tri"):
        opened(tmp_path / "own" / "1")


def test_during_a_canary_the_version_that_answers_in_triton_is_asked(tmp_path: Path) -> None:
    models = some_models(tmp_path / "models", "translator")
    model = models / "translator"
    shutil.copytree(model / "1", model / "2")
    tried = Canary("1", "2", 0.1, False, 0.3, "2026-11-25T10:00:00", {THRESHOLD_PARAMETER: "-0.5"})
    escaped = json.dumps(tried.text())
    with (model / "config.pbtxt").open("a") as file:
        file.write(f'parameters {{ key: "{CANARY_PARAMETER}" value {{ string_value: {escaped} }} }}\n')
    assert folder_of("translator", [models]) == model / "1"
    old, new = (opened(folder_of(f"translator/{version}", [models])).info for version in "12")
    assert (old.version, new.version, new.threshold) == ("1", "2", -0.5)
    assert old.threshold == opened(MODELS / "translator" / "1").info.threshold


# Processes


def test_a_worker_that_is_killed_is_said_and_its_rows_are_nobody_s(tmp_path: Path) -> None:
    work = GatedWork(tmp_path)
    with in_processes(work, 1) as (ask, _), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, ["a"])
        eventually(lambda: bool(work.workers()))
        for worker in work.workers():
            os.kill(worker, signal.SIGKILL)
        with pytest.raises(GourmetError, match="a worker process was ended from outside"):
            asked.result(30)


def test_workers_import_nothing_from_the_folder_of_the_command(tmp_path: Path) -> None:
    trap(tmp_path, "multiprocessing", "pickle", "numpy")
    argv = [GOURMET, "translate", "--via", "file", "--out", "out.jsonl", "--model-repository", str(MODELS)]
    subprocess.run(argv, cwd=tmp_path, input=TEXTS[0], text=True, check=True, timeout=120)
    assert rows_of(tmp_path / "out.jsonl")[0]["translation"]
    assert not sprung(tmp_path)


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_command_and_say_nothing_of_ctrl_c(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    work = GatedWork(tmp_path)
    program = f"import sys; sys.path.insert(0, {str(Path(gated_work.__file__).parents[1])!r})\n"
    program += f"from support.gated_work import main; main({str(tmp_path)!r})"
    argv = [sys.executable, "-P", "-c", program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        eventually(lambda: bool(work.workers()))
        workers = [psutil.Process(worker) for worker in work.workers()]
        if ended_by == signal.SIGINT:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
            (tmp_path / "go").touch()
            assert process.communicate(timeout=60) == ("stopped", "")
        else:
            process.kill()
        eventually(lambda: not any(worker.is_running() for worker in workers))
