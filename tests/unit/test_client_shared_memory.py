"""Inputs in shared memory: with whom, and what becomes of the file."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pytest

from gourmet.client.deadline import Deadline
from gourmet.client.errors import TritonRefused
from gourmet.client.shared_memory import FOLDER, LEAST_BYTES, SharedInput, SharedMemory
from gourmet.client.tensors import SharedTensor
from gourmet.client.transport import Call, Reply
from gourmet.runtime.run_folder import RunFolder

LARGE = np.zeros(LEAST_BYTES, np.uint8)


def opened(fields: Mapping[str, Any]) -> mmap.mmap:
    """The memory, as Triton opens it."""
    path = FOLDER / fields["key"].lstrip("/")
    assert path.stat().st_size == fields["byte_size"]
    assert path.stat().st_mode & 0o077 == 0  # nobody else's business
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), fields["byte_size"], prot=mmap.PROT_READ)


@pytest.mark.parametrize("values", [np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.ones(7, np.uint8)])
def test_what_is_put_there_is_what_is_read_there_and_no_file_stays(values: Any) -> None:
    found: list[mmap.mmap] = []
    shared = SharedInput(values.nbytes, lambda _, fields: found.append(opened(fields)))
    (memory,) = found
    assert not (FOLDER / shared.name).exists()
    assert shared.put(values).nbytes == values.nbytes
    assert memory[:] == values.tobytes()
    shared.put(values[::-1])
    assert memory[:] == values[::-1].tobytes()


def test_a_triton_that_cannot_open_it_leaves_no_file_either() -> None:
    offered: list[str] = []

    def refuse(name: str, _: Mapping[str, Any]) -> None:
        offered.append(name)
        assert (FOLDER / name).exists()
        raise RuntimeError("no such key")

    with pytest.raises(RuntimeError, match="no such key"):
        SharedInput(100, refuse)
    assert not (FOLDER / offered[0]).exists()


class Server:
    """A transport that stands for a Triton which knows some regions."""

    protocol: Literal["http", "grpc"] = "http"
    address = "triton:8000"

    def __init__(self, *, shares: bool) -> None:
        self.shares = shares
        self.calls: list[Call] = []
        self.regions: set[str] = set()

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        self.calls.append(call)
        if call.operation == "register":
            if not self.shares:
                raise TritonRefused("failed to open shared memory", 400)
            self.regions.add(call.target)
        if call.operation == "regions":
            yield Reply([{"name": name} for name in sorted(self.regions)])
            return
        if call.operation == "unregister":
            self.regions.remove(call.target)
        for values in call.inputs.values():
            if isinstance(values, SharedTensor) and values.region not in self.regions:
                raise TritonRefused("Unable to find shared memory region", 400)
        yield Reply({})

    def close(self) -> None: ...

    def asked(self) -> list[str]:
        """What was asked, and of an input whether it was shared."""
        found = []
        for call in self.calls:
            shared = any(isinstance(values, SharedTensor) for values in call.inputs.values())
            found.append(f"{call.operation} shared" if shared else call.operation)
        self.calls.clear()
        return found


def infer(memory: SharedMemory, values: Any = LARGE, **more: Any) -> None:
    assert list(memory.send(Call("infer", "m", inputs={"x": values, **more}), Deadline(5)))


def test_memory_is_used_again_and_registered_with_the_key_of_that_call() -> None:
    server = Server(shares=True)
    memory = SharedMemory(server, {"key": "secret"})
    infer(memory)
    assert [call.keys for call in server.calls] == [{"key": "secret"}, {}]
    infer(memory)
    infer(memory, LARGE[:-1].repeat(2))  # needs more
    assert server.asked() == ["register", *["infer shared"] * 2, "register", "infer shared"]


def test_what_is_closed_asks_its_server_no_more() -> None:
    before = set(threading.enumerate())
    memory = SharedMemory(Server(shares=True))
    infer(memory)
    (waits,) = set(threading.enumerate()) - before
    memory.close()
    waits.join(5)
    assert not waits.is_alive()


KILLED = """
import os, signal
from gourmet.client.shared_memory import FOLDER
from gourmet.runtime.run_folder import RunFolder
made = RunFolder("web-", FOLDER)
(FOLDER / f"{made.path.name}-of-a-photo").touch()
print(made.path.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_memory_of_processes_that_were_killed_is_unregistered_and_of_those_that_run_it_stays() -> None:
    command = [sys.executable, "-P", "-c", KILLED]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    runs = RunFolder("web-", FOLDER)
    server = Server(shares=True)
    server.regions = {f"{runs.path.name}-{'a' * 32}", f"{killed}-{'b' * 32}", "somebody's", "web-of-others"}
    stays = server.regions - {f"{killed}-{'b' * 32}"}
    memory = SharedMemory(server)
    infer(memory)
    (own,) = server.regions - stays - {f"{killed}-{'b' * 32}"}
    before = set(server.regions)
    server.regions.remove(own)
    memory.unregister_abandoned()
    assert server.regions == before - {own}, "a server that has nothing of this process is another machine's"
    server.regions.add(own)
    memory.unregister_abandoned()
    assert server.regions == stays | {own}
    assert not list(FOLDER.glob(f"{killed}*"))
    runs.close()
    memory.close()
    assert not (FOLDER / own.rpartition("-")[0]).exists()


def test_a_server_that_shares_no_memory_is_not_asked_to_forget_that_of_others() -> None:
    server = Server(shares=False)
    memory = SharedMemory(server)
    infer(memory)
    memory.unregister_abandoned()
    assert server.asked() == ["register", "infer"]


def test_a_server_that_does_not_share_it_is_asked_once_and_sent_bytes() -> None:
    server = Server(shares=False)
    memory = SharedMemory(server)
    infer(memory)
    infer(memory)
    assert server.asked() == ["register", "infer", "infer"]


def test_after_a_restart_that_forgot_the_memory_bytes_are_sent_and_then_it_is_registered_again() -> None:
    server = Server(shares=True)
    memory = SharedMemory(server)
    infer(memory)
    server.regions.clear()
    infer(memory)
    infer(memory)
    after = ["infer shared", "infer", "register", "infer shared"]
    assert server.asked() == ["register", "infer shared", *after]


def test_small_inputs_several_inputs_and_what_lies_there_already_are_sent_as_they_are() -> None:
    server = Server(shares=True)
    memory = SharedMemory(server)
    infer(memory, LARGE[:-1])
    infer(memory, LARGE, y=LARGE)
    list(memory.send(Call("load", "m"), Deadline(5)))
    assert server.asked() == ["infer", "infer", "load"]


def test_texts_have_room_for_larger_ones() -> None:
    server = Server(shares=True)
    photo = np.array([[b"x" * (LEAST_BYTES + 10)]], np.object_)
    memory = SharedMemory(server)
    infer(memory, photo)
    assert LEAST_BYTES < server.calls[0].fields["byte_size"] <= 4 * LEAST_BYTES
    infer(memory, np.array([[b"x" * (LEAST_BYTES + 5000)]], np.object_))
    assert server.asked() == ["register", "infer shared", "infer shared"]
