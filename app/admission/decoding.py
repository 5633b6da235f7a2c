"""How many pictures at a time, of those that may take long to decode."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gourmet.client.deadline import Deadline
from gourmet.pictures import decoders
from gourmet.pictures.decode import from_base64, identify, is_harmless


class Decoding:
    """Those for one kind of model."""

    def __init__(self, max_sandboxed: int) -> None:
        self._sandboxed = decoders.turns(max_sandboxed)

    def here(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Around what decodes in this process, or asks another to."""
        return decoders.decoding_for(
            deadline.left_s(), deadline.is_cancelled, deadline.client, self._sandboxed
        )

    def there(self, photo: bytes, deadline: Deadline) -> AbstractContextManager[None]:
        """While a photo is answered that a model decodes itself: a place, where that may take long."""
        quick = is_harmless(from_base64(photo))
        return nullcontext() if quick else decoders.place(self._sandboxed, deadline.client)

    @contextmanager
    def guarded(self, photo: bytes, deadline: Deadline) -> Iterator[dict[str, float]]:
        """The same, once its header was looked at, with how long that took; raise PictureError."""
        started = time.perf_counter()
        with self.here(deadline):
            identify(photo)
        with self.there(photo, deadline):
            yield {"decode": (time.perf_counter() - started) * 1000}
