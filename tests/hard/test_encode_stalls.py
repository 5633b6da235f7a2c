"""How much later words come while other photos are encoded: a few slices of the scheduler more or less."""

from __future__ import annotations

import threading
import time

import numpy as np
from support.captioner_room import room_here
from support.repeating import Repeating
from support.table import Keep, TableRow

from gourmet.runtime.decoding.loop import Row
from gourmet.systems.captioner.contract import SYSTEM

PHOTOS = [*SYSTEM.examples(12, seed=3), SYSTEM.sample()]


def test_encoding_other_photos_stalls_no_caption_by_more_than_two_steps(table: Keep) -> None:
    """The median of captions' longest waits for a word, beside that of captions alone, in the best of three
    turns, since whatever else uses the machine stalls them too.
    """
    with room_here() as (network, room):
        sources = [row.source for (row,) in network.requested({"IMAGE": PHOTOS})]

        def waits(number: int, max_tokens: int = 40) -> list[float]:
            came, done = list[float](), threading.Event()

            def on_tokens(row: Row) -> None:
                came.append(time.perf_counter())
                if row.finished:
                    done.set()

            room.submit([Row(sources[number % len(sources)], max_tokens, on_tokens=on_tokens)])
            assert done.wait(60)
            return np.diff(came).tolist()

        stalled: list[float] = []
        for _ in range(3):
            alone = [waits(number) for number in range(40)]
            with Repeating(lambda photo, _: waits(photo, max_tokens=1), 3):
                beside = [waits(number) for number in range(40)]
            longest = [np.median([max(each) for each in turn]) for turn in (alone, beside)]
            stalled.append((longest[1] - longest[0]) / np.median(np.concatenate(alone)))
    table(
        TableRow(
            tried="captions at work while other photos are only encoded",
            requests=120,
            answered=120,
            seen="its words, some steps later at the longest; the median of the best of three turns",
            survived=bool(min(stalled) <= 2),
            figures={"steps later": round(float(min(stalled)), 2)},
        )
    )
