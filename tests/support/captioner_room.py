"""The loop of the shipped captioner in this process, where nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from support.triton import MODELS

from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.systems.captioner.serving import SERVING, CaptionerNetwork


@contextmanager
def room_here() -> Iterator[tuple[CaptionerNetwork, GenerationRoom]]:
    network = SERVING.open(package.read(MODELS / "captioner" / "1" / package.FILE), 1)
    start, end = network.vocabulary.start, network.vocabulary.end
    room = GenerationRoom(network.engine, start=start, end=end, max_rows=16)
    yield network, room
    room.close()
