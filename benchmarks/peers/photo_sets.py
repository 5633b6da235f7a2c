"""The photos that everybody is sent: small ones from the web and large ones from phones."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from gourmet.pictures.drawn import views
from gourmet.runtime.instances import available_cpus
from gourmet.systems.food11 import contract

_SEED: Final = 11


@dataclass(frozen=True)
class Kind:
    """How many photos of which size; a phone's quality makes files of two to three megabytes."""

    count: int
    width: int
    height: int
    quality: int


KINDS: Final = {"small": Kind(64, 400, 300, 85), "phone": Kind(8, 4000, 3000, 92)}


@dataclass(frozen=True)
class PhotoSet:
    """Different photos of one kind."""

    name: str
    kind: Kind
    photos: tuple[bytes, ...]

    def __str__(self) -> str:
        kilobytes = [len(photo) / 1000 for photo in self.photos]
        return (
            f"{self.name}: {len(self.photos)} photos of {self.kind.width}×{self.kind.height}, "
            f"JPEG quality {self.kind.quality}, {min(kilobytes):.0f} to {max(kilobytes):.0f} kB, "
            f"mean {sum(kilobytes) / len(kilobytes):.0f}"
        )


def draw(names: Sequence[str]) -> dict[str, PhotoSet]:
    """The named sets, the same ones every time; large photos take a second or two each."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(available_cpus(), mp_context=context) as pool:
        drawn = {
            name: [pool.submit(_draw, KINDS[name], _SEED + at) for at in range(KINDS[name].count)]
            for name in names
        }
        return {
            name: PhotoSet(name, KINDS[name], tuple(future.result() for future in futures))
            for name, futures in drawn.items()
        }


def _draw(kind: Kind, seed: int) -> bytes:
    return views(
        contract.SYSTEM.sample(), 1, size=(kind.width, kind.height), seed=seed, quality=kind.quality
    )[0]
