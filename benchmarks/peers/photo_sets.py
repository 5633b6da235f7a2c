"""The photos that all contenders get: small ones as on the web, large ones as from phones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gourmet.pictures.drawn import views
from gourmet.systems.food11 import contract

_SEED: Final = 11


@dataclass(frozen=True)
class Kind:
    """The number, size and quality of photos; phone photos are two to three megabytes."""

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
    """Draw the named sets, the same ones every time; large photos take a second or two each."""
    return {name: PhotoSet(name, KINDS[name], drawn(KINDS[name])) for name in names}


def drawn(kind: Kind, seed: int = _SEED) -> tuple[bytes, ...]:
    size = kind.width, kind.height
    return tuple(views(contract.SYSTEM.sample(), kind.count, size=size, seed=seed, quality=kind.quality))
