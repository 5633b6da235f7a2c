"""Inputs for Triton in memory that both processes see, instead of in the body of a request.

A tensor that goes through a socket is copied six times on its way, in memory that two cores share with
the network that runs; a tensor that Triton finds in place is copied once. That needs a Triton that can open
what this user writes to /dev/shm. One that registers a file whose random name nobody else can have has proved
that it does; any other one, wherever it runs, is sent the bytes.

A region carries the name of a folder that its process holds locked. Triton keeps the memory of a process that
was killed, with its last photos: the next one like it unregisters what belongs to no folder any more.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from gourmet.client.deadline import Deadline
from gourmet.client.errors import TritonError, TritonRefused
from gourmet.client.tensors import SharedTensor, datatype_of, raw, raw_bytes
from gourmet.client.transport import Call, KeyedTransport, Reply, Transport
from gourmet.contracts import Array
from gourmet.runtime.run_folder import RunFolder

FOLDER: Final = Path("/dev/shm")
# Below this, sending costs less than looking after a piece of memory.
LEAST_BYTES: Final = 16_384
# As much as is kept for each request at a time, of photos that Triton decodes.
MOST_TEXT_BYTES: Final = 4_000_000
# What Triton says of a region that it was never told of, as after a restart.
_UNKNOWN_REGION: Final = "shared memory region"
_PREFIX: Final = "web-"
_REGION: Final = re.compile(rf"({_PREFIX}[0-9a-f]+)-[0-9a-f]+")
# Longer than Triton may still read what a process that was killed had asked: it reads on in memory that is
# taken away, and crashes.
_LAST_ANSWERS_S: Final = 15.0


class SharedMemory:
    """A transport that puts the input of a request where the server sees it, if the server proves to.

    Each address has one of these, since one server may share memory and another not.
    """

    def __init__(self, below: Transport, keys: Mapping[str, str] = MappingProxyType({})) -> None:
        """`keys` open the server's shared memory, where that is locked."""
        self.protocol: Literal["http", "grpc"] = below.protocol
        self.address = below.address
        self._below, self._keyed = below, KeyedTransport(below, keys)
        self._is_shared = os.access(FOLDER, os.W_OK)
        # The one that was used last is used next; a request in flight has its own.
        self._idle: list[SharedInput] = []
        self._folder: RunFolder | None = None
        self._later: threading.Timer | None = None
        self._folder_made = threading.Lock()

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        if not (values := self._worth_sharing(call)):
            yield from self._below.send(call, deadline)
            return
        ((name, tensor),) = values.items()
        if region := self._region(tensor, deadline):
            try:
                shared = replace(call, inputs={name: region.put(tensor)})
                yield from self._below.send(shared, deadline)
                return
            except TritonRefused as exc:
                if _UNKNOWN_REGION not in exc.reason.lower():
                    raise
                region = None  # a Triton that was started again knows of none
                self._idle.clear()
            finally:
                if region:
                    self._idle.append(region)
        yield from self._below.send(call, deadline)

    def close(self) -> None:
        self._idle.clear()
        if self._later:
            self._later.cancel()
        if self._folder:
            self._folder.close()
        self._below.close()

    def _worth_sharing(self, call: Call) -> dict[str, Array]:
        """The input of a request with only one, if it is large enough."""
        if not self._is_shared or call.operation != "infer" or len(call.inputs) != 1:
            return {}
        ((name, values),) = call.inputs.items()
        if isinstance(values, SharedTensor):
            return {}
        max_bytes = MOST_TEXT_BYTES if values.dtype == np.object_ else float("inf")
        return {name: values} if LEAST_BYTES <= raw_bytes(values) <= max_bytes else {}

    def _region(self, values: Array, deadline: Deadline) -> SharedInput | None:
        """Memory for `values` that nobody else uses; None where the server does not share any."""
        nbytes = raw_bytes(values)
        with contextlib.suppress(IndexError):
            if (found := self._idle.pop()).nbytes >= nbytes:
                return found

        def register(name: str, fields: Mapping[str, Any]) -> None:
            list(self._keyed.send(Call("register", name, fields), deadline))

        try:
            name = f"{self._owner()}-{uuid.uuid4().hex}"
            # Photos are of all sizes: with room for larger ones, Triton is told of it once.
            room = 1 << nbytes.bit_length() if values.dtype == np.object_ else nbytes
            return SharedInput(room, register, name)
        except (TritonRefused, OSError):  # it runs elsewhere, or as another user
            self._is_shared = False
            return None

    def _owner(self) -> str:
        """The name of this process's folder; a while after it is made, what others left is unregistered."""
        with self._folder_made:
            if not self._folder:
                # Which removes the folders of those that were killed.
                self._folder = RunFolder(_PREFIX, FOLDER)
                weakref.finalize(self, self._folder.close)
                self._later = threading.Timer(_LAST_ANSWERS_S, self.unregister_abandoned)
                self._later.daemon = True
                self._later.start()
            return self._folder.path.name

    def unregister_abandoned(self) -> None:
        """Have the server forget the memory of processes that are gone, if it knows some of this one's."""
        if not self._folder or not self._is_shared:
            return
        deadline = Deadline(_LAST_ANSWERS_S)
        with contextlib.suppress(TritonError, ValueError):  # gRPC's where it is closed meanwhile
            (reply,) = self._keyed.send(Call("regions"), deadline)
            regions = reply.fields or () if reply else ()
            names = [each if isinstance(each, str) else str(each.get("name")) for each in regions]
            owners = {name: found[1] for name in names if (found := _REGION.fullmatch(name))}
            # Only a server that opened memory of this machine has that of processes which can be seen here.
            if self._folder.path.name in owners.values():
                for name, owner in owners.items():
                    if not (FOLDER / owner).is_dir():
                        list(self._keyed.send(Call("unregister", name), deadline))


class SharedInput:
    """One input's worth of memory; its file goes once `register` has had Triton open it."""

    def __init__(
        self, nbytes: int, register: Callable[[str, Mapping[str, Any]], None], name: str = ""
    ) -> None:
        self.nbytes = nbytes
        self.name = name or f"{_PREFIX}{uuid.uuid4().hex}"
        path = FOLDER / self.name
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file, 0, nbytes)
            self._memory = mmap.mmap(file, nbytes)
            register(self.name, {"key": f"/{self.name}", "offset": 0, "byte_size": nbytes})
        finally:
            os.close(file)
            path.unlink()

    def put(self, values: Array) -> SharedTensor:
        """Where `values` lie now."""
        is_text = values.dtype == np.object_
        data = np.frombuffer(raw(values), np.uint8) if is_text else values
        here: Array = np.frombuffer(self._memory, data.dtype, data.size)
        np.copyto(here.reshape(data.shape), data)
        return SharedTensor(self.name, datatype_of(values), values.shape, raw_bytes(values))
