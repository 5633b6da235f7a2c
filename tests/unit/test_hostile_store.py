"""A store of objects that somebody else keeps: what it says is not believed, and ends in a sentence."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.hostile_store import Answers, answer, endless, holding, store

from gourmet.errors import GourmetError
from gourmet.runtime import object_store
from gourmet.runtime.object_store import fetch, read_object

Serve = Callable[[Answers], dict[str, str]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    with ExitStack() as stack:

        def serve(answers: Answers) -> dict[str, str]:
            env = stack.enter_context(store(answers))
            for name, value in env.items():
                monkeypatch.setenv(name, value)
            object_store._store.cache_clear()
            return env

        yield serve
    object_store._store.cache_clear()


def test_an_object_that_says_ten_bytes_and_never_ends_is_read_no_further_than_its_bound(
    served: Serve,
) -> None:
    served(lambda _: endless("200 OK", Content_Length="10"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OSError, match="larger than 4 MB"):
        read_object("s3://photos/a.jpg", 4 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


def test_what_a_store_says_is_a_short_sentence_without_a_key_and_nothing_to_a_terminal(
    served: Serve, tmp_path: Path
) -> None:
    said = b"<Message>\x1b]0;owned\x07" + b"y" * 300_000 + b"</Message>"
    env = served(lambda _: iter([answer("400 Bad", said)]))
    with pytest.raises(GourmetError) as refused:
        read_object("s3://photos/a.jpg", 100)
    assert len(str(refused.value)) < 1_000
    assert env["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)

    served(lambda _: iter([answer("400 Bad", b"<Message>\x1b]0;owned\x07</Message>")]))
    argv = [sys.executable, "-P", "-m", "gourmet.runtime.object_store", "s3://models", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert r"s3://models cannot be had: \x1b]0;owned\x07" in done.stderr


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["models/../../escaped"], "illegal character sequence"),
        (["/models/a"], "models/a went away"),
        (["elsewhere/a"], "elsewhere/a cannot be a file in .*it is not below that name.*rename it"),
        (["modelsx/a"], "it is not below that name"),
        (["models/a", "models/a/b"], "models/a/b cannot be a file in"),
        (["models/a/b", "models/a"], "models/a cannot be a file in .*Is a directory"),
        (["models/" + "x" * 300], "File name too long"),
    ],
)
def test_keys_that_cannot_be_files_of_the_folder_end_in_a_sentence(
    served: Serve, tmp_path: Path, keys: list[str], reason: str
) -> None:
    served(holding(dict.fromkeys(keys, b"abc")))
    inner = tmp_path / "inner" / "models"
    with pytest.raises(GourmetError, match=reason):
        fetch("s3://bucket/models", inner)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} <= {*inner.rglob("*")}


def test_what_consoles_make_of_a_folder_is_no_object_of_it(served: Serve, tmp_path: Path) -> None:
    """Its name ends in "/", so that there is none of the name without."""
    served(holding({"models/a/": b"", "models/a/config.pbtxt": b"abc"}))
    assert fetch("s3://bucket/models", tmp_path).startswith("1 objects, 0 MB")
    assert (tmp_path / "a" / "config.pbtxt").read_bytes() == b"abc"


def test_an_object_that_went_away_is_said(served: Serve, tmp_path: Path) -> None:
    there = holding({"models/b": b"abc"})

    def without(first_line: str) -> Iterator[bytes]:
        yield from there(first_line) if "list-type" in first_line else iter([answer("404 Not Found")])

    served(without)
    with pytest.raises(GourmetError, match="models/b went away after it was listed: try again"):
        fetch("s3://bucket/models", tmp_path)
