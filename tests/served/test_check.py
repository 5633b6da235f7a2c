"""`gourmet check` against a real Triton: the numbers are the network's, and what goes wrong is said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton_http
from support.cli import gourmet
from support.made_models import parameters, python_model, tensors
from support.triton import MODELS, RunningTriton, triton_server
from support.up import GOURMET, restore_signals

from gourmet.evaluation.accuracy import accuracy
from gourmet.stack.processes import wait_until
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.evaluate import EVALUATION
from gourmet.systems.food11.network import load
from gourmet.training.files import save_tensors

FAULTY = Path(__file__).parent / "faulty_model.py"
FAULTS = ("none", "drops", "swaps", "refuses", "holds", "ten", "nobodys")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose test part has four drawn photos a class: two full batches and a ragged one."""
    folder = tmp_path_factory.mktemp("drawn")
    with zipfile.ZipFile(folder / "test.zip", "w") as archive:
        for number, data in enumerate(SYSTEM.examples(44, 3, (80, 64))):
            archive.writestr(f"{number % 11:02d}/{number}.jpg", data)
    return folder


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that are served, as `gourmet train` would have written them."""
    network, _ = load(MODELS / "food_classifier" / "1" / "model.onnx")
    path = tmp_path_factory.mktemp("weights") / "committed.safetensors"
    save_tensors(path, network.state_dict(), network.about)
    return path


@pytest.fixture(scope="module")
def faulty(lab_triton: Any) -> Iterator[str]:
    """The address of a Triton that serves food models with a fault each."""

    def load(fault: str) -> None:
        put_faulty(lab_triton.repository, fault)
        with triton_http.InferenceServerClient(lab_triton.http_url, network_timeout=120) as client:
            client.load_model(f"food_{fault}")

    with ThreadPoolExecutor(4) as pool:  # loading is mostly waiting
        list(pool.map(load, FAULTS))
    yield lab_triton.http_url
    with triton_http.InferenceServerClient(lab_triton.http_url) as client:
        for fault in FAULTS:
            client.unload_model(f"food_{fault}")
            shutil.rmtree(lab_triton.repository / f"food_{fault}")


def put_faulty(repository: Path, fault: str) -> None:
    batch, row, classes, system = 16, "", 11, "food11"
    if fault == "holds":  # takes one picture at a time
        batch, row = 0, "1,"
    if fault == "ten":
        classes = 10
    if fault == "nobodys":
        system = ""
    folder = repository / f"food_{fault}"
    image = tensors("input", "image", kind="UINT8", dims=f"[ {row} 224, 224, 3 ]")
    answer = tensors("output", "probabilities", dims=f"[ {row} {classes} ]")
    config = (f"max_batch_size: {batch}", image, answer, parameters(system=system, fault=fault))
    python_model(folder, FAULTY.read_text(), *config)
    (folder / "held").touch()


def test_the_numbers_through_triton_are_those_of_gourmet_evaluate(
    triton: Any, committed: Path, drawn: Path
) -> None:
    network, _ = load(committed)
    listed = DATA.listing(drawn, "test", 44)
    answered = EVALUATION.answers_to(network, listed, "cpu", lambda *_: None)
    right = accuracy(answered.logits, answered.classes, SYSTEM.labels).as_dict()
    options = ("--data", drawn, "--url", triton.http_url, "--json", "-")
    done = gourmet("check", "food_classifier_onnx", *options, "--min-top1", 0)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert right.items() <= report["quality"].items()
    int8 = json.loads(gourmet("check", "food_classifier_int8", *options).stdout)
    assert int8["problems"] == []
    assert abs(int8["quality"]["top1"] - right["top1"]) <= 0.05


def test_a_second_model_gets_the_same_pictures_and_is_compared(triton: Any, drawn: Path) -> None:
    options = ("--data", drawn, "--limit", 30, "--url", triton.http_url, "--json", "-")
    done = gourmet("check", "food_classifier_int8", "--against", "food_classifier_onnx", *options)
    assert done.exit_code == 0, done.output
    against = json.loads(done.stdout)["against"]
    assert (against["model"], against["pictures"]) == ("food_classifier_onnx", 30)
    assert against["different"] < 15
    assert 0 < against["largest_difference"] < 1
    same = gourmet(
        *("check", "food_classifier_onnx", "--against", "food_classifier_onnx/1", "--min-top1", 1), *options
    )
    assert json.loads(same.stdout)["against"]["different"] == 0
    assert same.exit_code == 1
    assert "below the 1.0 that --min-top1 asks for" in same.stderr
    wrong = gourmet("check", "food_classifier_onnx", "--against", "digits", *options)
    assert "digits has other labels than food_classifier_onnx" in wrong.output


@pytest.mark.parametrize(
    ("fault", "messages"),
    [
        (
            "drops",
            ["3 of 3 requests failed, which leaves 44 of 44", "00/0.jpg …", "has 15 rows in answer to 16"],
        ),
        # The first row of a batch of sixteen went to the last.
        ("swaps", ["mixes up the rows of its batches", "00/0.jpg (its answer went to 03/36.jpg)"]),
        (
            "refuses",
            ["of 3 requests failed", "were refused when asked about alone", "not this one, thank you"],
        ),
    ],
)
def test_a_fault_of_the_model_fails_the_check_and_its_pictures_are_named(
    faulty: str, drawn: Path, fault: str, messages: list[str]
) -> None:
    done = gourmet("check", f"food_{fault}", "--url", faulty, "--data", drawn)
    assert done.exit_code == 1
    for message in messages:
        assert message in done.stderr
    assert "of 44 pictures answered" in done.stdout
    assert ("top-1" in done.stdout) is (fault != "drops"), "of the pictures that have an answer"


def test_a_broken_picture_is_named(faulty: str, tmp_path: Path) -> None:
    for number in range(17):
        (tmp_path / f"{number}.jpg").write_bytes(SYSTEM.sample())
    (tmp_path / "torn.jpg").write_bytes(SYSTEM.sample()[:200])
    done = gourmet("check", "food_none", "--url", faulty, "--data", tmp_path, "--min-top1", 0.5)
    assert done.exit_code == 1
    assert "torn.jpg cannot be read: " in done.stderr
    assert "16 of 18 pictures answered" in done.stdout
    assert "--min-top1 0.5 cannot be judged: there are no labels" in done.stderr


def test_without_data_the_bundled_examples_are_checked(triton: Any, faulty: str) -> None:
    done = gourmet("check", "digits", "--url", triton.http_url, "--limit", "1")
    assert done.exit_code == 0, done.output
    assert "1 of 1 pictures answered" in done.output
    assert ", 1 request\n" in done.output
    none = gourmet("check", "food_none", "--url", faulty)
    assert none.exit_code == 2
    assert "food11 has no bundled pictures: name some to ask about with --data" in none.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["food_none", "--url", "localhost:1"], "no Triton answers at localhost:1"),
        (["nosuch"], "'nosuch' is not ready (unknown to Triton); ready are "),
        (["food_nobodys"], "does not say which system it belongs to"),
        (["food_ten"], "returns 10 scores a picture, but food11 has 11 labels"),
        (["food_none", "--out", "picture.png"], "name a folder, or a file that ends in .html"),
    ],
)
def test_a_check_that_cannot_run_ends_with_one_sentence(
    arguments: list[str], complaint: str, faulty: str, drawn: Path
) -> None:
    done = gourmet("check", "--url", faulty, "--data", drawn, *arguments)
    assert done.exit_code in (1, 2)
    assert complaint in done.stderr
    assert isinstance(done.exception, SystemExit)


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [GOURMET, "check", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=restore_signals)


def rows_counted(url: str, model: str) -> Callable[[], int]:
    def rows() -> int:
        with triton_http.InferenceServerClient(url) as client:
            return int(client.get_inference_statistics(model)["model_stats"][0]["inference_count"])

    return rows


def test_ctrl_c_stops_a_check_and_keeps_the_answers_so_far(
    faulty: str, lab_triton: RunningTriton, drawn: Path, tmp_path: Path
) -> None:
    repository = lab_triton.repository
    rows = rows_counted(faulty, "food_holds")
    process = start("food_holds", "--url", faulty, "--data", drawn, "--json", tmp_path / "it.json")
    # The check counts its first answer before it sends the 33rd picture; the model holds the next one.
    wait_until(lambda: rows() == 33, 120, "33 rows")
    process.send_signal(signal.SIGINT)
    (repository / "food_holds" / "held").unlink()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "STOPPED" in out
    assert "stopped after" in err
    assert "Traceback" not in err
    partial = json.loads((tmp_path / "it.json").read_text())
    assert partial["stopped"] is True
    assert partial["complete"] is False
    assert 0 < partial["answered"] < 44


def test_a_server_that_goes_away_ends_the_check(drawn: Path, tmp_path: Path) -> None:
    put_faulty(tmp_path, "holds")
    with triton_server(tmp_path) as server:
        options = server.options
        server.wait_until_live(180)
        rows = rows_counted(options.http_url, "food_holds")
        process = start("food_holds", "--url", options.http_url, "--data", drawn)
        wait_until(lambda: rows() == 33, 120, "33 rows")
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out
    assert f"Triton at {options.http_url} went away after" in err
    assert "Traceback" not in err
    assert out == ""
