"""`gourmet lab` as a user runs it: a real JupyterLab and stack, its notebooks, and what is restored.

JupyterLab is not in the environment of `make test`: those who work on the rest do without its 60 MB. The
tests that start it are slow; `make test-slow` installs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from support.cli import gourmet, said
from support.lab_notebooks import KEYS, WIDE, notebook
from support.needs import need_module
from support.triton import RunningTriton, run_triton, some_models
from support.up import Up, restore_signals
from support.web_app import StartWeb

from gourmet.commands import lab as lab_command
from gourmet.lab.restoring import restore_models
from gourmet.served.instances import available_cpus
from gourmet.stack import run_file
from gourmet.stack.connect import connect
from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import http_ok, wait_until

MODEL = "food_classifier_onnx"
# What a kernel does: ask for the end to be cleaned up, change a config, and go on until it is ended.
KERNEL = """
import os, sys, time
from click.testing import CliRunner
from gourmet.cli import main
from gourmet.lab.exercises import begin
url, os.environ["GOURMET_LAB"] = sys.argv[1:]
os.environ["TRITON_SERVER_URL"] = url
begin(8, "food_classifier_onnx")
done = CliRunner().invoke(main, ["config", "food_classifier_onnx", "--variant", "one-instance", "--url", url])
print(f"ended with {done.exit_code}", flush=True)
time.sleep(300)
"""


@pytest.fixture
def jupyterlab() -> None:
    need_module("jupyterlab", "make setup-lab")


class RunningLab(Up):
    """A `gourmet lab`, and how JupyterLab is asked."""

    def __init__(self, folder: Path, **environment: str) -> None:
        (self.lab,) = free_ports(1)
        env = {"JUPYTER_RUNTIME_DIR": str(folder), "GOURMET_LAB": str(folder / "lab"), **environment}
        super().__init__(f"--lab-port={self.lab}", "--no-browser", verb="lab", tmp=folder, env=env)

    def wait_until_open(self) -> None:
        self.wait_for("Ctrl-C ends the lab\n")
        wait_until(lambda: http_ok(f"http://127.0.0.1:{self.lab}/api"), 60, "JupyterLab answers", poll_s=0.2)

    def get(self, path: str, token: str) -> Any:
        """Return JupyterLab's answer for this token."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.lab}/{path}", headers={"Authorization": f"token {token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture
def lab(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningLab]:
    monkeypatch.delenv("TRITON_SERVER_URL", raising=False)
    beside = {"TRITON_SERVER_URL": request.getfixturevalue("triton").http_url} if request.param else {}
    running = RunningLab(tmp_path, **beside)
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("jupyterlab")
@pytest.mark.parametrize("lab", [False, True], indirect=True, ids=["starts a stack", "finds one"])
def test_the_notebook_needs_a_token_and_ctrl_c_ends_everything(
    lab: RunningLab, request: pytest.FixtureRequest
) -> None:
    lab.wait_until_open()
    address = next(line for line in lab.output.splitlines() if "the notebook http://" in line)
    assert f"http://127.0.0.1:{lab.lab}/lab/tree/triton.ipynb?token=" in address
    token = address.rpartition("token=")[2]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        lab.get("api/contents", "wrong")
    assert "triton.ipynb" in [entry["name"] for entry in lab.get("api/contents", token)["content"]]
    notification = lab.get("lab/api/settings/@jupyterlab/apputils-extension:notification", token)
    assert notification["schema"]["properties"]["fetchNews"]["default"] == "false"
    stack = [f"http://127.0.0.1:{lab.port}/readyz", f"http://127.0.0.1:{lab.http}/v2/health/ready"]
    starts_one = "starts a stack" in request.node.name
    assert [http_ok(url) for url in stack] == [starts_one, starts_one]
    lab.stop()
    assert lab.process.returncode == 0
    assert lab.output.endswith("stopped\n")
    for url in (*stack, f"http://127.0.0.1:{lab.lab}/api"):
        assert not http_ok(url)
    if not starts_one:
        assert http_ok(f"http://{request.getfixturevalue('triton').http_url}/v2/health/ready")


@pytest.mark.slow
@pytest.mark.usefixtures("jupyterlab")
def test_a_named_triton_that_is_away_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SERVER_URL", "127.0.0.1:9")
    assert "no Triton answers at 127.0.0.1:9" in said("lab", status=1)


@pytest.mark.slow
@pytest.mark.usefixtures("jupyterlab")
def test_fresh_sets_the_previous_work_aside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "triton.ipynb").write_text("my work")
    monkeypatch.setenv("GOURMET_LAB", str(tmp_path / "lab"))
    gourmet("lab", "--fresh", "--url", "127.0.0.1:9")
    (aside,) = tmp_path.glob("lab-*")
    assert (aside / "triton.ipynb").read_text() == "my work"


def test_hand_in_needs_an_answer_but_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOURMET_LAB", str(tmp_path))
    monkeypatch.setenv(run_file.FOLDER_ENV, str(tmp_path / "keys"))
    with contextlib.ExitStack() as stacks:
        for port in (8001, 8002):
            stack = run_file.RunningStack(os.getpid(), f"127.0.0.1:{port}", "", "", "", [], "explicit")
            stacks.enter_context(run_file.run_file_for((port,), {"stack": asdict(stack)}))
        assert "has no answer yet: work on an exercise first" in said("lab", "hand-in", status=2)


def test_a_missing_jupyterlab_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_command, "find_spec", lambda name: None)
    assert "run `make setup-lab`" in said("lab", status=1)


def instances(url: str) -> int:
    with connect(url) as triton:
        return int(triton.config(MODEL)["instance_group"][0]["count"])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_configs_are_restored_however_the_kernel_ends(
    triton: Any, how: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-P", "-c", KERNEL, triton.http_url, str(tmp_path)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=restore_signals)
    with started as kernel:
        assert kernel.stdout
        assert "ended with 0\n" in iter(kernel.stdout.readline, "")
        assert instances(triton.http_url) == 1
        kernel.send_signal(how)
    wait_until(
        lambda: instances(triton.http_url) == 2, 60, "the config of the files serves again", poll_s=0.2
    )


@pytest.fixture
def own_triton(tmp_path: Path) -> Iterator[RunningTriton]:
    """A Triton for a test that unloads all models for study."""
    yield from run_triton(some_models(tmp_path / "models", MODEL, "food_first", instances=2))


def test_doctor_and_the_next_lab_report_a_changed_config_and_a_fresh_lab_restores_it(
    own_triton: RunningTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, repository = own_triton.http_url, own_triton.repository

    said("config", MODEL, "--variant", "one-instance", "--url", url)
    output = gourmet("doctor", "--repository", repository, "--url", url).output
    (line,) = (line for line in output.splitlines() if "serves another config than its files" in line)
    assert f"{MODEL} " in line
    assert f"gourmet config {MODEL} --reset --url {url}" in line
    monkeypatch.setattr("gourmet.commands.lab.DEFAULT_REPOSITORY", repository)
    assert [MODEL in str(finding) for finding in lab_command._changed_configs(url, named=True)] == [True]
    assert "food_first answers" in said("load", "food_first", "--url", url)
    restore_models(url)
    assert instances(url) == 2
    with connect(url) as server:
        assert server.ready_models() == [MODEL]


MODELS_OF_THE_LAB = ("food_first", "food_classifier_onnx", "food_classifier_int8", "translator")


def run(book: Any, url: str, folder: Path, *, seconds: float = 0.1) -> Any:
    """Execute a notebook in the folder of a lab, where it is saved too."""
    env = {"TRITON_SERVER_URL": url, "GOURMET_LAB_SECONDS": str(seconds), "GOURMET_LAB": str(folder)}
    client = NotebookClient(book, timeout=300, kernel_name="python3")
    folder.mkdir(exist_ok=True)
    try:
        with client.setup_kernel(env={**os.environ, **env}, cwd=str(folder)):
            for index, cell in enumerate(book.cells):
                client.execute_cell(cell, index)
    finally:
        nbformat.write(book, folder / "triton.ipynb")
    return book


def printed(cell: Any) -> str:
    """The text of all of a cell's outputs."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (folder / "answers").glob("*.json")}


def served(url: str) -> dict[str, Any]:
    with connect(url) as triton:
        ready = triton.ready_models()
        return {model: triton.config(model) if model in ready else None for model in MODELS_OF_THE_LAB}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lab"


@pytest.fixture
def left_as_found(triton: Any) -> Iterator[None]:
    triton.load(*MODELS_OF_THE_LAB)
    before = served(triton.http_url)
    yield
    assert served(triton.http_url) == before


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("left_as_found")
@pytest.mark.parametrize(
    ("name", "exercises"),
    [
        pytest.param("triton.ipynb", ("2", "5", "7", "9"), marks=pytest.mark.slow),
        pytest.param("digits.ipynb", ("D2", "D4"), marks=pytest.mark.slow),
        pytest.param("loops.ipynb", ("L1", "L2", "L3"), marks=pytest.mark.slow),
        pytest.param("triton.ipynb", (), marks=pytest.mark.nightly),
        pytest.param("loops.ipynb", (), marks=pytest.mark.nightly),
        pytest.param("digits.ipynb", (), marks=pytest.mark.nightly),
    ],
    ids=[
        *("triton, four exercises", "digits, two exercises", "loops, three exercises"),
        *("triton", "loops", "digits"),
    ],
)
def test_every_question_is_answered_and_handed_in(
    triton: Any,
    start: StartWeb,
    folder: Path,
    name: str,
    exercises: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = notebook(name, WIDE, *exercises)
    for cell in book.cells:
        if cell.source.startswith("begin(9, "):
            app_url = start(triton.http_url).url.removeprefix("http://")
            cell.source = f'{cell.source.removesuffix(")")}, app_url="{app_url}")'
    run(book, triton.http_url, folder)
    letter = {"loops.ipynb": "L", "digits.ipynb": "D"}.get(name, "")
    keys = {key for key in KEYS if key.rstrip("abcdefgh").rstrip("0123456789") == letter}
    keys = {key for key in keys if not exercises or key[:-1] in exercises}
    by_question = answers(folder)
    assert by_question.keys() == keys
    verdicts = {answer["measured"]["verdict"] for answer in by_question.values()}
    assert verdicts == {"as you predicted"}
    monkeypatch.setenv("GOURMET_LAB", str(folder))
    assert said("lab", "hand-in") == f"written: {folder / 'hand-in.html'}\n"
    page = (folder / "hand-in.html").read_text()
    for key in keys:
        assert f"<h3>{key}: " in page
    assert "triton 2." in page
    assert page.count("(not answered)") == len(
        [cell for cell in book.cells if cell.metadata.get("tags") == ["box"]]
    )
    text = "\n".join(printed(cell) for cell in book.cells if cell.cell_type == "code")
    if name == "triton.ipynb":
        assert "a request of 16 rows was answered with 1 rows of FOOD_LABEL" in text
        assert "100 % of the photos get the label of food_first" in text
        assert "no_mean does not answer FOOD_LABEL, which its config declares" in text
        assert "has no attribute 'UnferenceSession'" in text
        assert '"batch_stats":[{"batch_size":' in text


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("left_as_found")
def test_without_a_guess_the_measuring_cell_is_refused_in_a_sentence(triton: Any, folder: Path) -> None:
    book = notebook("triton.ipynb", {"3a": (1, 2)}, "3")
    with pytest.raises(CellExecutionError):
        run(book, triton.http_url, folder)
    (cell,) = [cell for cell in book.cells if cell.cell_type == "code" and cell.source.startswith("runs = ")]
    (error,) = cell.outputs
    assert error.traceback == [
        "Error: exercise 3 asks before it measures: put your low and high in place of the dots of 3b, "
        "run that cell, and then this one again"
    ]


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("left_as_found")
def test_a_measurement_beside_a_busy_program_is_explained_and_marked(triton: Any, folder: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available_cpus())]
    try:
        run(
            notebook("triton.ipynb", WIDE, "1"), triton.http_url, folder, seconds=0.01
        )  # made longer until there are answers
    finally:
        for process in busy:
            process.kill()
            process.wait()
    by_question = answers(folder)
    verdicts = {answer["measured"]["verdict"] for answer in by_question.values()}
    assert verdicts == {"as you predicted"}
    assert "other programs used" in by_question["1a"]["measured"]["disturbed"]
    assert by_question["1a"]["measured"]["explanation"][0].startswith("Measured: Of ")
