"""Journal and tables of `gourmet classify`; its requests are tested in tests/served."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gourmet.bulk import inputs as bulk_inputs
from gourmet.bulk.inputs import Photos
from gourmet.bulk.on_ray import check_for_ray
from gourmet.bulk.resumable_table import Columns, Journal, Row, answer_all, check_table, write_table
from gourmet.bulk.summary import summarise
from gourmet.commands.bulk import table_of
from gourmet.errors import GourmetError, UsageError
from gourmet.reports.table import spreadsheet_cell
from gourmet.systems.food11.contract import SYSTEM

COLUMNS: Columns = {
    **{"path": str, "verdict": str, "label": str, "probability": float, "sure": bool},
    **{"error": str, "sha256": str},
    "probabilities": ("Egg", "Soup"),
}
PLAN = {"model": "food"}


def row(path: str, label: str = "Egg", probability: float = 0.75, error: str | None = None) -> Row:
    if error:
        return dict.fromkeys(COLUMNS) | {"path": path, "error": error, "sha256": "cd" * 32}
    return {
        **{"path": path, "verdict": label, "label": label, "probability": probability},
        **{"sure": probability > 0.5, "error": None, "sha256": "ab" * 32},
        "probabilities": {"Egg": probability, "Soup": 1 - probability},
    }


class Asked:
    """A model that says Egg to everything."""

    columns, plan = COLUMNS, PLAN

    def __init__(self, together: int = 1, in_flight: int = 1) -> None:
        self.together, self.in_flight = together, in_flight

    def rows(self, names: Sequence[str]) -> list[Row]:
        return [row(bulk_inputs.as_text(name)) for name in names]

    def close(self) -> None:
        pass


def none(_share: float, _words: str = "") -> None:
    pass


def test_folders_are_walked_in_one_order_and_lists_and_stdin_name_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b/2.jpg", "b/1.PNG", "a/9.jpg", "a/notes.txt", "3.webp"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "list.txt").write_bytes(b"one.jpg\n\n  two words.jpg \n" + os.fsencode("zw\udcf6lf.jpg"))
    lines = io.BytesIO((tmp_path / "list.txt").read_bytes())
    monkeypatch.setattr(bulk_inputs.sys, "stdin", SimpleNamespace(buffer=lines))
    arguments = (str(tmp_path / "in"), str(tmp_path / "list.txt"), str(tmp_path / "in/3.webp"))
    result = Photos(arguments)
    listed = ["one.jpg", "two words.jpg", "zw\udcf6lf.jpg"]
    below = [str(tmp_path / "in" / name) for name in ("3.webp", "a/9.jpg", "b/1.PNG", "b/2.jpg")]
    assert list(result) == list(result) == [*below, *listed, str(tmp_path / "in/3.webp")]
    assert result.count() == 8
    stdin = Photos(("-",))
    assert stdin.count() is None
    assert list(stdin) == listed


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("gs://bucket/photos", "copy the files to a folder"),
        ("s3://bucket/photos", "`aws s3 sync`"),
        ("nowhere", "nowhere does not exist"),
    ],
)
def test_inputs_that_cannot_be_read_are_refused_with_the_next_step(given: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Photos((given,))


def test_an_invalid_list_of_files_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"a.jpg\n" + b"x" * 5_000)
    with pytest.raises(UsageError, match=r"line 2 of .* is not a file name"):
        list(Photos((str(tmp_path / "list"),)))


def test_a_stopped_run_resumes_and_each_input_has_one_row(tmp_path: Path) -> None:
    names = (os.fsdecode(b"zw\xf6lf.jpg"), *(f"{number}.jpg" for number in range(1, 40)))
    (tmp_path / "list").write_bytes(os.fsencode("\n".join(names)))
    inputs, batches = Photos((str(tmp_path / "list"),)), list[list[str]]()

    class FailsAt20(Asked):
        def rows(self, names: Sequence[str]) -> list[Row]:
            batches.append(list(names))
            if "20.jpg" in names and len(batches) < 15:
                raise GourmetError("the server went away")
            return super().rows(names)

    with closing(Journal(tmp_path / "out.part", PLAN)) as journal:
        with pytest.raises(GourmetError, match="went away"):
            answer_all(inputs, journal, FailsAt20(3, 1), none)
        kept = journal.rows
    assert 0 < kept <= 20
    with journal.path.open("ab") as file:  # what a crash cuts off is asked again
        file.write(b'{"path": "20.j')
    batches[:] = [[]] * 20
    with closing(Journal(tmp_path / "out.part", PLAN)) as journal:
        assert journal.rows == kept
        answer_all(inputs, journal, FailsAt20(3, 4), none)
        assert [entry["path"] for entry in journal] == ["zw\ufffdlf.jpg", *names[1:]]
    assert sum(map(len, batches)) == 40 - kept


def test_other_inputs_another_model_and_a_second_run_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a.jpg\nb.jpg")
    inputs = Photos((str(tmp_path / "list"),))
    path = tmp_path / "out.part"
    with closing(Journal(path, PLAN)) as journal:
        journal.add([row("a.jpg")])
        with pytest.raises(UsageError, match="another run writes"):
            Journal(path, PLAN)
    with pytest.raises(UsageError, match="begun with other model"):
        Journal(path, {"model": "other"})
    (tmp_path / "list").write_text("z.jpg\nb.jpg")
    about = pytest.raises(UsageError, match=r"row 1 of .* is about a\.jpg, but the input is z\.jpg")
    with closing(Journal(path, PLAN)) as journal, about:
        answer_all(inputs, journal, Asked(), none)


@pytest.mark.parametrize("written", [b"\x80\x02\n", b"[]\n", b'{"plan": 3}\n'], ids=["binary", "list", "3"])
def test_an_unrelated_output_file_is_refused_and_kept(written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.part"
    path.write_bytes(written + b"\n")
    with pytest.raises(UsageError, match="cannot be resumed"):
        Journal(path, PLAN)
    assert path.read_bytes() == written + b"\n"


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], object]]:
    """Have no file of this process grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda max_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """A table of forty photos, one in a request."""
    for number in range(40):
        (folder / f"{number}.jpg").touch()
    inputs = Photos((str(folder),))
    with table_of(inputs, Asked(), folder / "out.csv"):
        yield


@pytest.mark.parametrize("most", [10, 3_000], ids=["nothing", "some rows"])
def test_a_run_resumes_after_a_full_disk_has_room_again(
    most: int, tmp_path: Path, full_disk: Callable[[int], object]
) -> None:
    full_disk(most)
    with pytest.raises(GourmetError, match="free disk space"), made(tmp_path):
        pass
    assert not (tmp_path / "out.csv").exists()
    full_disk(1 << 30)
    with made(tmp_path):
        pass
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 41
    assert not list(tmp_path.glob("*.part"))


def test_a_run_whose_page_fails_goes_on_with_the_same_command(tmp_path: Path) -> None:
    with pytest.raises(GourmetError, match=r"out.html cannot be written .*\n.* 40 rows are"), made(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device", "out.html")
    check_table(tmp_path / "out.csv")
    with made(tmp_path):
        pass
    assert not list(tmp_path.glob("*.part"))


def test_all_formats_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [row("a.jpg"), row("=cmd()", probability=0.25), row("c.jpg", error="this is not a picture [x]")]
    for suffix in ("jsonl", "csv"):
        write_table(rows, tmp_path / f"out.{suffix}", COLUMNS)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows
    first, formula, failed = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert (first["path"], first["sure"], first["error"]) == ("a.jpg", "true", "")
    assert json.loads(first["probabilities"]) == rows[0]["probabilities"]
    assert formula["path"] == "'=cmd()"
    write_table([{"text": "-1", "score": -0.5}], tmp_path / "scores.csv", {"text": str, "score": float})
    assert (tmp_path / "scores.csv").read_text() == "text,score\n'-1,-0.5\n", "a number is not a formula"
    assert {spreadsheet_cell(f"{sign}1")[0] for sign in "=+-@\t\r\n"} == {"'"}
    assert (failed["label"], failed["error"]) == ("", "this is not a picture [x]")


@pytest.mark.parametrize(
    ("name", "says"),
    [("out.xlsx", "must end in one of"), ("there.csv", "exists already"), ("no/o.csv", "does not exist")],
)
def test_an_unwritable_table_is_refused_before_the_run(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "there.csv").touch()
    with pytest.raises(UsageError, match=says):
        check_table(tmp_path / name)


def test_ray_is_refused_without_a_cluster_or_for_another_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UsageError, match="set RAY_ADDRESS"):
        check_for_ray(Path("out.parquet"))
    for out in (None, Path("out.csv")):
        with pytest.raises(UsageError, match=r"Ray writes \.parquet and \.jsonl"):
            check_for_ray(out)


def test_the_summary_has_counts_and_the_doubtful_rows(tmp_path: Path) -> None:
    photo = tmp_path / "doubtful.jpg"
    photo.write_bytes(SYSTEM.sample())
    rows = [
        row("a.jpg"),
        row(str(photo), "Soup", 0.25),
        row("<b>c.jpg", error="the file cannot be read: Permission denied"),
        row("d.jpg", error="a picture of 60 million pixels [too_many_pixels]"),
    ]
    report = summarise(rows, SYSTEM)
    text = report.text()
    assert "2 of 4 photos have an answer, 1 of them sure" in text
    assert re.search(r"^too_many_pixels +1$", text, re.M)
    page = report.page("gourmet classify", "2026-11-25T08:00:00")
    assert "&lt;b&gt;c.jpg" in page
    assert page.count("<img") == 1
    assert "Soup (0.25)" in page
    nothing = dict.fromkeys(COLUMNS)  # of a journal that somebody wrote
    assert re.search(r"^no answer +1$", summarise([row("a.jpg"), nothing], SYSTEM).text(), re.M)
    assert summarise([], SYSTEM).text() == "0 of 0 photos have an answer, 0 of them sure"
