"""`gourmet load` and `unload` on a real stack and on a Triton elsewhere: a folder of one's own is served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import cli
from support.eventually import eventually
from support.triton import MODELS, some_models
from support.up import Up

from gourmet.served.files import own_models
from gourmet.stack.connect import connect
from gourmet.stack.preflight import free_ports


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    shipped = tmp_path_factory.mktemp("shipped")
    shutil.copytree(MODELS / "food_first", some_models(shipped, "digits") / "food_first")
    tmp, own = tmp_path_factory.mktemp("up"), own_models()
    own.mkdir(parents=True, exist_ok=True)
    repositories = (f"--model-repository={shipped}", f"--model-repository={own}")
    with Up("--triton-only", *repositories, tmp=tmp, env={"PORT": ""}) as up:
        yield up


def gourmet(url: str, *words: str) -> tuple[int, str]:
    result = cli.gourmet(*words, "--url", url)
    return result.exit_code, result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "food_first", tmp_path / "mine"))


def test_a_model_for_study_is_loaded_asked_and_unloaded(stack: Up) -> None:
    url = f"127.0.0.1:{stack.http}"
    assert gourmet(url, "load", "food_first") == (
        0,
        "food_first answers: the sample is Noodles/Pasta, 94%\n",
    )
    for words, refusal in (
        (("--max-batch", "0"), "0 is not in the range x>=1"),
        (("--variant", "two-gpus"), "does not see all of these GPUs, and goes on with the one before: "),
    ):
        status, output = gourmet(url, "config", "food_first", *words)
        assert status in (1, 2)
        assert refusal in output
    assert gourmet(url, "unload", "food_first") == (0, "food_first is unloaded\n")
    status, output = gourmet(url, "unload", "food_first")
    assert status == 2
    assert output.startswith("Error: food_first is not loaded; ready are digits")
    again = "loading food_first: it is loaded when it is used"
    eventually(lambda: again in gourmet(url, "config", "food_first")[1])
    assert gourmet(url, "unload", "food_first")[0] == 0


def test_a_user_folder_is_served_and_goes_on_where_a_broken_one_is_refused_with_its_line(
    stack: Up, folder: Path
) -> None:
    url, model = f"127.0.0.1:{stack.http}", folder / "1" / "model.py"
    assert gourmet(url, "load", "my_food", "--from", str(folder))[1].startswith("my_food answers: the sample")
    assert "now: 2 instances" in gourmet(url, "config", "my_food", "--instances", "2")[1]
    model.write_text(model.read_text().replace("json.loads(", "json.lods("))
    status, output = gourmet(url, "load", "my_food", "--from", str(folder))
    assert status == 1
    assert "has no attribute 'lods'" in output
    assert "my_food/1/model.py(" in output
    with connect(url) as triton:
        assert triton.is_ready("my_food")
    assert "json.loads(" in (own_models() / "my_food" / "1" / "model.py").read_text()
    assert gourmet(url, "unload", "my_food")[0] == 0
    assert not list(own_models().glob("**/model.py"))
    assert not list(own_models().parent.glob(".load-*"))


def test_a_triton_that_does_not_serve_the_own_folder_is_sent_the_files(
    triton: Any, folder: Path, tmp_path: Path
) -> None:
    assert gourmet(triton.http_url, "load", "my_food", "--from", str(folder))[0] == 0
    model = folder / "1" / "model.py"
    model.write_text(model.read_text().replace("json.loads(", "json.lods("))
    status, output = gourmet(triton.http_url, "load", "my_food", "--from", str(folder))
    assert status == 1
    assert "has no attribute 'lods'" in output
    # It was unloaded first: Triton reports no error of files that replace others.
    assert gourmet(triton.http_url, "unload", "my_food")[0] == 2


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("load", "digits", "--from", "FOLDER"), "digits is a model of "),
        (("load", "my_food", "--from", "EMPTY"), "has no version: put model.py or model.onnx into "),
        (("load", "nothing"), "no served repository has a model 'nothing': give your folder with --from"),
        (("bench", "run", "nothing"), "`gourmet load nothing`"),
    ],
)
def test_an_unknown_or_unloadable_model_is_refused_in_a_sentence(
    stack: Up, folder: Path, tmp_path: Path, words: tuple[str, ...], refusal: str
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    folders = {"FOLDER": str(folder), "EMPTY": str(empty)}
    status, output = gourmet(f"127.0.0.1:{stack.http}", *(folders.get(word, word) for word in words))
    assert status in (1, 2)
    assert refusal in output


def test_a_page_with_a_model_that_cannot_answer_is_refused_at_the_start(
    stack: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)[0]
    for model, why in (("food_typo", "not a served model"), ("digits", "a model of the system 'digits'")):
        monkeypatch.setenv("FOOD11_MODEL_NAME", model)
        status, output = gourmet(f"127.0.0.1:{stack.http}", "up", "--web-only", f"--port={port}")
        assert status == 2
        assert output.startswith(f"Error: FOOD11_MODEL_NAME is '{model}', which is {why}: choose one of ")
