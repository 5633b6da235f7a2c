"""Photos and models in a bucket of a real S3 server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.eventually import eventually
from support.object_store import Bucket, bucket
from support.triton import MODELS
from support.up import GOURMET

from gourmet.bulk.inputs import Inputs
from gourmet.cli import main
from gourmet.errors import GourmetError, UsageError
from gourmet.runtime import object_store
from gourmet.runtime.object_store import fetch, names_below, read_object
from gourmet.systems.food11.contract import SYSTEM

ODD = "a b/ü+50%20&=#?.JPG"


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with bucket() as found:
        yield found


@pytest.fixture
def store(server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    object_store._store.cache_clear()
    yield server
    object_store._store.cache_clear()


def test_what_lies_below_a_prefix_is_found_in_one_order_and_read(store: Bucket) -> None:
    keys = [f"many/{number:04}.jpg" for number in range(1_100)]  # more than a list has at a time
    for key in (*keys[::-1], "many/notes.txt", "manyfold/1.jpg", f"many/{ODD}"):
        store.put(key, key.encode())
    found = list(Inputs(("s3://photos/many",), {".jpg"}))
    assert found == [f"s3://photos/{key}" for key in (*keys, f"many/{ODD}")]
    assert found == list(Inputs(("s3://photos/many/",), {".jpg"}))
    assert read_object(found[-1], 100) == f"many/{ODD}".encode()
    assert list(Inputs((found[3],), {".jpg"})) == [found[3]]


def test_what_cannot_be_read_is_one_object_s_reason_and_a_store_that_is_away_ends_it(
    store: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="no such object"):
        read_object("s3://photos/gone.jpg", 100)
    with pytest.raises(OSError, match="larger than 1 MB"):
        read_object(store.put("large.jpg", b"x" * ((1 << 20) + 1)), 1 << 20)
    with pytest.raises(GourmetError, match="fotos/many cannot be had: The specified bucket does not exist\n"):
        list(names_below("s3://fotos/many"))
    with pytest.raises(UsageError, match=r"names no bucket: write s3://BUCKET/PREFIX"):
        Inputs(("s3:///many",), {".jpg"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    object_store._store.cache_clear()
    with pytest.raises(GourmetError, match=r"cannot be had: .*\n.*AWS_ENDPOINT_URL"):
        read_object("s3://photos/large.jpg", 100)


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"obstore.* -r requirements/s3.txt`, or copy what is there"):
        Inputs(("s3://photos/many",), {".jpg"})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, data in enumerate(SYSTEM.examples(12, 7, (96, 80))):
        (folder / f"{number:02}.jpg").write_bytes(data)
    (folder / "none.png").write_bytes(b"no picture")
    return folder


def classified(given: object, out: Path) -> list[dict[str, Any]]:
    argv = ["classify", str(given), "--via", "file", "--model-repository", str(MODELS), "--out", str(out)]
    result = CliRunner().invoke(main, argv)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_photos_in_a_bucket_have_the_answers_of_those_in_a_folder(
    store: Bucket, photos: Path, tmp_path: Path
) -> None:
    for path in photos.iterdir():
        store.put(f"few/{path.name}", path.read_bytes())
    there, here = (
        classified("s3://photos/few", tmp_path / "there.jsonl"),
        classified(photos, tmp_path / "here.jsonl"),
    )
    assert [row.pop("path") for row in there] == [
        f"s3://photos/few/{each.name}" for each in sorted(photos.iterdir())
    ]
    assert there == [{name: value for name, value in row.items() if name != "path"} for row in here]
    assert (tmp_path / "there.html").read_text().count("<img") == 12


def test_a_run_over_a_bucket_that_was_killed_goes_on_with_a_row_for_each(
    store: Bucket, photos: Path, tmp_path: Path
) -> None:
    data, out = (photos / "03.jpg").read_bytes(), tmp_path / "out.jsonl"
    for number in range(200):
        store.put(f"killed/{number:03}.jpg", data)
    argv = [GOURMET, "classify", "s3://photos/killed", "--via", "file", "--model-repository", MODELS]
    part = Path(f"{out}.part")
    with subprocess.Popen([*argv, "--together", "1", "--in-flight", "1", "--out", out]) as process:
        eventually(lambda: part.exists() and part.read_bytes().count(b"\n") > 20, 60)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -9
    assert not out.exists()
    rows = classified("s3://photos/killed", out)
    assert [row["path"] for row in rows] == [f"s3://photos/killed/{number:03}.jpg" for number in range(200)]
    assert {row["error"] for row in rows} == {None}


def test_an_empty_prefix_and_a_key_that_leads_elsewhere_are_refused(store: Bucket, tmp_path: Path) -> None:
    with pytest.raises(GourmetError, match="nothing found below s3://photos/nowhere"):
        fetch("s3://photos/nowhere", tmp_path)
    store.put("evil/../../escaped", b"")
    with pytest.raises(GourmetError):
        fetch("s3://photos/evil", tmp_path / "inner" / "models")
    assert not list(tmp_path.rglob("escaped"))
