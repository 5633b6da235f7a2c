"""Decoders that never return, crash or take too much cost the one picture that they were given."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image
from support.eventually import eventually
from support.planted import busy_with, gif, plant

from gourmet.errors import GourmetError
from gourmet.pictures import decode, decoders
from gourmet.pictures.decoders import decoding_for
from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.pictures.sandbox import Limits
from gourmet.triton_client.deadline import Deadline

SIZE = 32


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[decoders.Decoders]:
    """Two processes of this test's own, with the faults."""
    for name, value in plant(tmp_path).items():
        monkeypatch.setenv(name, value)
    # Those that an earlier test of this process left idle are children of it too.
    decoders.decoders.close()
    monkeypatch.setattr(decoders, "decoders", decoders.Decoders(2))
    yield decoders.decoders
    decoders.decoders.close()
    assert processes() == []


def processes(parent: psutil.Process | None = None) -> list[int]:
    # One that has ended and was not waited for yet has no command.
    children = (parent or psutil.Process()).children()
    alive = (child for child in children if child.status() != psutil.STATUS_ZOMBIE)
    return [child.pid for child in alive if "gourmet.pictures.decode" in child.cmdline()]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def code_of(comment: str) -> str:
    with pytest.raises(PictureError) as caught:
        decode.square_pixels(gif(comment), SIZE)
    assert str(caught.value)
    return caught.value.code


@pytest.mark.promise("SECURITY 1")
@pytest.mark.parametrize(("comment", "limits"), [("never returns", (0.3, 8.0)), ("sleeps", (3.0, 0.5))])
def test_a_decoder_is_ended_at_its_limits(
    comment: str, limits: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asdict(decoders.LIMITS) == {"cpu_s": 3.0, "wall_s": 8.0, "memory_bytes": 400_000_000}
    with monkeypatch.context() as shorter:
        shorter.setattr(decoders, "LIMITS", Limits(*limits, memory_bytes=400_000_000))
        assert code_of(comment) == "too_slow"
    assert decode.square_pixels(gif("honest"), SIZE).shape == (SIZE, SIZE, 3)


def test_a_sleeping_decoder_is_ended_at_its_client_s_deadline() -> None:
    decode.square_pixels(gif("honest"), SIZE)
    began = time.monotonic()
    with decoding_for(2.5, lambda: False):
        assert code_of("sleeps") == "too_slow"
    assert time.monotonic() - began < decoders.WALL_S
    assert busy_with("sleeps") == []


def test_nothing_is_computed_for_a_client_that_left(patient: None) -> None:
    with decoding_for(60, lambda: busy_with("never returns") != []):
        assert code_of("never returns") == "too_slow"
    assert processes() == []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders whose own limits end nothing."""
    monkeypatch.setattr(decoders, "LIMITS", Limits(60.0, 60.0, memory_bytes=400_000_000))


def test_no_decoder_is_asked_for_a_client_that_left_before() -> None:
    with decoding_for(60, lambda: True), pytest.raises(DecodersBusy, match="the client disconnected"):
        decode.square_pixels(gif("honest"), SIZE)


@pytest.mark.parametrize(
    ("comment", "code"), [("crashes", "broken_picture"), ("takes a gigabyte", "too_complex")]
)
def test_a_crash_or_too_much_memory_fails_only_its_picture(comment: str, code: str) -> None:
    assert code_of(comment) == code
    assert decode.square_pixels(gif("honest"), SIZE).shape == (SIZE, SIZE, 3)


def test_a_decoder_writes_no_file_and_knows_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEYS", "secret")
    assert code_of("writes a file") == "broken_picture"
    (pid,) = processes()
    assert (tmp_path / "written").read_bytes() == b""
    assert not {"API_KEYS", "HOME"} & psutil.Process(pid).environ().keys()


def test_a_process_that_ended_while_it_was_idle_is_replaced() -> None:
    decode.square_pixels(gif("honest"), SIZE)
    (pid,) = processes()
    psutil.Process(pid).kill()
    eventually(lambda: has_ended(pid))
    assert decode.identify(gif("honest")).format == "GIF"
    assert processes() != [pid]


def outcome(comment: str, left: threading.Event, queue: Any, client: str = "") -> str:
    with decoding_for(60, left.is_set, client, queue):
        try:
            decode.square_pixels(gif(comment), SIZE)
        except PictureError as exc:
            return exc.code
        except DecodersBusy:
            return "busy"
    return "pixels"


def test_pictures_beyond_the_decoder_queue_are_refused_as_busy() -> None:
    queue, left = decoders.decoder_queue(2), threading.Event()

    def wait(comment: str) -> str:
        if (result := outcome(comment, left, queue)) == "busy":
            left.set()  # two decode, and now the client of all leaves
        return result

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(wait, ["sleeps"] * 4)) == ["busy", "busy", "too_slow", "too_slow"]
    left.clear()
    assert wait("honest") == "pixels"


def test_a_client_with_slow_pictures_leaves_half_of_the_decoders_to_others(patient: None) -> None:
    queue, left = decoders.decoder_queue(4), threading.Event()
    with ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(outcome, "sleeps", left, queue, "me") for _ in range(6)]
        eventually(lambda: processes() != [], 60)
        assert [outcome("honest", left, queue, "you") for _ in range(5)] == ["pixels"] * 5
        assert not all(future.done() for future in slow)
        left.set()
        # Two had places, one of them a process too; when that gave up, so had the other.
        assert Counter(future.result() for future in slow) == {"too_slow": 1, "busy": 5}


def test_a_model_that_decodes_is_asked_about_a_slow_picture_only_with_a_place() -> None:
    decoding, caller = decoders.Decoding(1), Deadline(60, client="me")
    harmless = io.BytesIO()
    Image.new("RGB", (8, 8)).save(harmless, "JPEG")
    with decoding.decode_in_model(gif("honest"), caller):
        with pytest.raises(DecodersBusy), decoding.decode_in_model(gif("honest"), caller):
            pass
        with decoding.decode_in_model(harmless.getvalue(), caller):
            pass
    with decoding.decode_in_model(gif("honest"), caller):  # the place is free again
        pass
    with pytest.raises(PictureError, match="not a picture"), decoding.decode_in_model(b"words", caller):
        raise GourmetError("the model's words")


def test_a_decoder_process_returns_the_same_pixels_as_this_process() -> None:
    photo = io.BytesIO()
    Image.effect_noise((90, 60), 80).convert("RGB").save(photo, "TIFF")
    head, body = decode.answer({"task": "square", "size": SIZE}, photo.getvalue())
    assert decode.square_pixels(photo.getvalue(), SIZE).tobytes() == body
    assert head == {"height": SIZE, "width": SIZE}
    assert decode.whole_pixels(photo.getvalue(), 30).shape == (20, 30, 3)


DECODES_AND_IS_KILLED = """
import sys
from gourmet.pictures.decode import square_pixels
sys.path.insert(0, sys.argv[1])
from support.planted import gif
square_pixels(gif("honest"), 32)
print("ready", flush=True)
square_pixels(gif(sys.argv[2]), 32)
"""


def test_a_killed_process_leaves_no_decoder_behind() -> None:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", DECODES_AND_IS_KILLED, tests, "sleeps"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as program:
        assert program.stdout
        assert program.stdout.readline() == b"ready\n"
        (pid,) = processes(psutil.Process(program.pid))
        eventually(lambda: busy_with("sleeps", psutil.Process(program.pid)) != [])
        program.kill()
    eventually(lambda: has_ended(pid), decoders.WALL_S - 2)


def test_a_forked_process_has_decoders_of_its_own() -> None:
    decode.square_pixels(gif("honest"), SIZE)
    mine = processes()
    pid = os.fork()
    if not pid:
        same = decoders.decoders._idle
        os._exit(bool(same))
    assert os.waitpid(pid, 0)[1] == 0
    assert decode.identify(gif("honest")).width == 64
    assert processes() == mine
