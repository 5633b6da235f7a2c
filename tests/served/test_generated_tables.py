"""`--out` of `gourmet translate` and `caption` at a real Triton: a row for each, and stopped runs go on."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from click.testing import Result
from PIL import Image
from support.cli import gourmet
from support.triton import RunningTriton

from gourmet.bulk.resumable_table import SUFFIX
from gourmet.systems.captioner.contract import SYSTEM as CAPTIONER
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR

TEXTS = [text.decode() for text in TRANSLATOR.examples(40, seed=5)]


def run(triton: RunningTriton, *words: object, given: str | bytes | None = None) -> Result:
    return gourmet(*words, "--url", triton.http_url, input=given)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
