"""`gourmet classify`, and `translate` and `caption` with --out, at a real Triton: a row for each input."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from support.cli import gourmet
from support.eventually import eventually
from support.needs import need_module
from support.triton import RunningTriton, some_models, triton_server
from support.up import GOURMET, restore_signals

from gourmet.bulk.resumable_table import SUFFIX
from gourmet.stack.connect import connect
from gourmet.systems.captioner.contract import SYSTEM as CAPTIONER
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR
from gourmet.triton_client.triton import Triton

MODELS = ("food_classifier", "food_classifier_onnx")


def classify(triton: RunningTriton, *words: object) -> Result:
    return gourmet("classify", *words, "--url", triton.http_url)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty-one drawn photos in two folders, and two files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    for number, data in enumerate(SYSTEM.examples(40, 7, (96, 80))):
        path = folder / f"{number % 2}" / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (folder / "copy.jpg").write_bytes((folder / "0" / "00.jpg").read_bytes())
    (folder / "1" / "none.png").write_bytes(b"no picture")
    (folder / "gone.webp").symlink_to(folder / "nowhere")
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Of a table, or of the parts that Ray writes."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def alone(triton: Triton, model: str, path: str) -> list[float]:
    info = triton.describe(model)
    outputs = triton.infer(model, SYSTEM.request_inputs(Path(path).read_bytes(), info)).outputs
    return [float(value) for value in SYSTEM.probabilities(outputs, info)[0]]


@pytest.mark.parametrize("model", MODELS)
def test_each_photo_has_its_own_answer_and_other_files_a_reason(
    triton: RunningTriton, photos: Path, tmp_path: Path, model: str
) -> None:
    result = classify(triton, photos, "--out", tmp_path / "out.jsonl", "--model", model)
    assert result.exit_code == 0, result.output
    assert "41 of 43 photos have an answer" in result.output
    rows = rows_of(tmp_path / "out.jsonl")
    assert len({row["path"] for row in rows}) == len(rows) == 43
    failed = {Path(row["path"]).name: row["error"] for row in rows if row["error"]}
    assert failed.keys() == {"none.png", "gone.webp"}
    assert "not_a_picture" in failed["none.png"]
    assert "No such file" in failed["gone.webp"]
    with connect(triton.http_url) as server:
        for row in rows:
            if not row["error"]:
                np.testing.assert_allclose(
                    [*row["probabilities"].values()], alone(server, model, row["path"]), atol=2e-3
                )
                best = max(row["probabilities"], key=row["probabilities"].get)
                assert row["label"] == best
                assert row["verdict"] == "This does not look like food" or row["relevant"]
    assert "<img" in (tmp_path / "out.html").read_text()
    assert not list(tmp_path.glob("*.part"))


def test_a_model_that_is_not_a_classifier_is_refused(triton: RunningTriton, photos: Path) -> None:
    result = classify(triton, photos, "--model", "translator")
    assert result.exit_code == 2
    assert "'translator' does not classify pictures: name another model with --model" in result.output


def test_a_file_name_that_is_not_utf_8_is_on_the_page(
    triton: RunningTriton, photos: Path, tmp_path: Path
) -> None:
    photo = os.fsdecode(os.fsencode(tmp_path) + b"/zw\xf6lf.jpg")
    Path(photo).write_bytes((photos / "copy.jpg").read_bytes())
    argv = [GOURMET, "classify", photo, "--out", tmp_path / "out.jsonl", "--url", triton.http_url]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
    assert "/zw?lf.jpg" in (tmp_path / "out.html").read_text()


def test_without_a_table_each_photo_has_a_line_and_a_failed_one_sets_the_exit_status(
    triton: RunningTriton, photos: Path
) -> None:
    result = classify(triton, photos / "0" / "00.jpg", photos / "1" / "none.png")
    assert result.exit_code == 1
    assert f"{photos}/0/00.jpg: " in result.output
    assert f"{photos}/1/none.png: this is not a picture" in result.output
    assert "1 of 2 photos have no answer" in result.output


def test_an_interrupted_run_resumes_and_has_the_rows_of_a_whole_run(
    triton: RunningTriton, photos: Path, tmp_path: Path
) -> None:
    many = tmp_path / "list.txt"
    some = sorted(str(path) for path in (photos / "0").iterdir())
    many.write_text("\n".join(some * 40))
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    argv = [GOURMET, "classify", many, "--out", out, "--url", triton.http_url]
    started = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, preexec_fn=restore_signals)
    with started as process:
        eventually(lambda: part.exists() and part.read_bytes().count(b"\n") > 20)
        process.send_signal(signal.SIGINT)
        errors = process.communicate()[1]
    assert process.returncode == 130
    assert "the same command resumes" in errors
    assert not out.exists()
    kept = part.read_bytes().count(b"\n") - 1
    result = classify(triton, many, "--out", out)
    assert f"going on after {kept}" in result.output.replace(",", "") or kept == 0
    rows = rows_of(out)
    assert [row["path"] for row in rows] == some * 40
    answers = {(row["path"], row["label"]) for row in rows}
    assert len(answers) == len(some)


def test_a_run_whose_server_goes_away_keeps_its_rows(photos: Path, tmp_path: Path) -> None:
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    (tmp_path / "list.txt").write_text("\n".join([str(photos / "0" / "00.jpg")] * 4_000))
    out = tmp_path / "out.jsonl"
    server = triton_server(models)
    server.start()
    server.wait_until_live(180)
    argv = [GOURMET, "classify", tmp_path / "list.txt", "--model", "food_classifier_onnx", "--out", out]
    with subprocess.Popen(
        [*argv, "--url", server.options.http_url], stderr=subprocess.PIPE, text=True
    ) as process:
        part = Path(f"{out}.part")
        eventually(lambda: part.exists() and part.read_bytes().count(b"\n") > 20)
        server.close()
        errors = process.communicate()[1]
    assert process.returncode == 1
    assert "no Triton answers" in errors
    assert "rows are kept; the same command resumes" in errors


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    need_module("ray", "make setup-dev")
    utils = importlib.import_module("ray.cluster_utils")
    cluster = start_ray(utils.Cluster)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    cluster.shutdown()


def start_ray(start: Any) -> Any:
    """Start a cluster; another one where the machine is so busy that Ray's own 30 s were not enough."""
    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
    for tries_left in (2, 1, 0):
        try:
            return start(initialize_head=True, head_node_args=node)
        except Exception as exc:
            if not tries_left or "timed out during startup" not in str(exc):
                raise
    raise AssertionError("the last try returns or raises")


@pytest.mark.slow
def test_photos_have_the_rows_of_a_run_without_ray(
    triton: RunningTriton, cluster: None, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, data in enumerate(SYSTEM.examples(40, 7, (96, 80))):
        (photos / f"{number:02}.jpg").write_bytes(data)
    (photos / "none.png").write_bytes(b"no picture")
    (photos / os.fsdecode(b"zw\xf6lf.jpg")).write_bytes(SYSTEM.sample())
    tables = {}
    for engine in ("local", "ray"):
        tables[engine] = tmp_path / f"{engine}.jsonl"
        words = ["--out", tables[engine], "--engine", engine, "--url", triton.http_url]
        # Not in this process, where Ray's warnings would be errors.
        done = subprocess.run([GOURMET, "classify", photos, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    local_rows, ray_rows = (
        sorted(rows_of(table), key=lambda row: str(row["path"])) for table in tables.values()
    )
    for column in ("path", "label", "error"):
        assert [row[column] for row in ray_rows] == [row[column] for row in local_rows]
    for local, on_ray in zip(local_rows, ray_rows, strict=True):
        if local["error"] is None:
            assert on_ray["probabilities"] == pytest.approx(local["probabilities"], abs=2e-3)


TEXTS = [text.decode() for text in TRANSLATOR.examples(40, seed=5)]


def run(triton: RunningTriton, *words: object, given: str | bytes | None = None) -> Result:
    return gourmet(*words, "--url", triton.http_url, input=given)


def test_each_line_has_the_same_translation_as_alone(triton: RunningTriton, tmp_path: Path) -> None:
    # The last has several sentences, and ends as texts do in C.
    lines = [*TEXTS[:20], "", "я" * 2001, *TEXTS[20:], f"{' '.join(TEXTS[:9])}\0"]
    out = tmp_path / "out.jsonl"
    done = run(triton, "translate", "--out", out, given="\n".join(lines))
    assert done.exit_code == 0, done.output
    assert "41 of 42 have an answer" in done.output
    rows = rows_of(out)
    assert [row["text"] for row in rows] == [line for line in lines if line]
    assert [row["translation"] for row in rows if not row["error"]] == run(
        triton, "translate", *TEXTS, lines[-1]
    ).stdout.splitlines()
    (failed,) = (row for row in rows if row["error"])
    assert "2,000" in failed["error"]
    assert {row["version"] for row in rows if not row["error"]} == {"1"}
    assert all(row["score"] < 0 for row in rows if not row["error"])
    scores: dict[bool, list[float]] = {True: [], False: []}
    for row in rows[:-1]:
        if not row["error"]:
            scores[row["sure"]].append(row["score"])
    assert max(scores[False]) < min(scores[True]), "of everyday sentences, about which nothing is doubtful"


def test_a_stopped_run_resumes_after_its_rows_with_the_same_texts(
    triton: RunningTriton, tmp_path: Path
) -> None:
    whole, again = tmp_path / "whole.csv", tmp_path / "again.csv"
    text = "\n".join(TEXTS)
    assert run(triton, "translate", "--out", whole, given=text).exit_code == 0
    wrong = run(triton, "translate", "--out", again, given=f"{TEXTS[0]}\n".encode() + b"\xff")
    assert wrong.exit_code == 2
    assert "is not UTF-8" in wrong.output
    kept = again.with_name(again.name + SUFFIX)
    assert len(kept.read_text().splitlines()) <= 2, "a plan and at most what came before"
    other = run(triton, "translate", "--out", again, "--beams", "2", given=text)
    assert "begun with other beams" in other.output
    done = run(triton, "translate", "--out", again, given=text)
    assert done.exit_code == 0, done.output
    assert again.read_text() == whole.read_text()
    assert not kept.exists()


def test_each_photo_of_a_folder_has_a_caption_or_a_reason(triton: RunningTriton, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, photo in enumerate(CAPTIONER.examples(9, seed=2)):
        (photos / f"{number}.jpg").write_bytes(photo)
    (photos / "none.png").write_bytes(b"no picture")
    with Image.open(io.BytesIO(CAPTIONER.sample())) as sample:
        sample.save(photos / "progressive.jpg", progressive=True)  # decoded by another process
    out = tmp_path / "out.csv"
    done = run(triton, "caption", photos, "--out", out)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(out.read_text(), newline="")))
    others = ["none.png", "progressive.jpg"]
    assert [Path(row["path"]).name for row in rows] == [*(f"{number}.jpg" for number in range(9)), *others]
    printed = run(triton, "caption", photos).stdout.splitlines()
    assert [f"{row['path']}: {row['caption']}" for row in rows if row["caption"]] == [
        line.removesuffix("  (not sure)") for line in printed
    ]
    assert {row["sure"] for row in rows if row["caption"]} <= {"true", "false"}
    assert [Path(row["path"]).name for row in rows if row["error"]] == ["none.png"]
