"""Draw digits by strokes, as people of several countries write them, and drawings of no digit.

The bundled writers have no long flags, no feet, no crossed sevens and one kind of pen. Hand and pen are
random: proportions, slant, trembling, and strokes from a hair to a brush. The drawings for measuring,
tests/support/drawn_digits.py, have strokes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from gourmet.pictures.decode import Pixels
from gourmet.systems.digits import contract

Points = npt.NDArray[np.float64]

_SIDE: Final = 140
_MARGIN: Final = 28
# Shares of the digit's height.
_THINNEST_PEN: Final = 0.03
_THICKEST_PEN: Final = 0.3
_THICKEST_SCRIBBLE: Final = 0.1  # a thick one is a blot, which an 8 or a 0 may be too
STEADY: Final = 0.03
UNSTEADY: Final = 0.08
_STEPS: Final = 10

# Strokes in a square from 0 to 1, y downwards. Points are joined by a curve, with a corner at "|".
_WAYS: Final[tuple[tuple[str, ...], ...]] = (
    (
        ".5 0 .2 .12 .08 .5 .2 .88 .5 1 .8 .88 .92 .5 .8 .12 .5 0",
        ".6 .02 .2 .1 .1 .55 .3 .95 .6 .98 .88 .7 .86 .3 .55 .03 .35 .1",
        ".5 0 .2 .12 .08 .5 .2 .88 .5 1 .8 .88 .92 .5 .8 .12 .5 0 ; .78 .06 .22 .94",
        ".7 .1 .45 0 .12 .2 .08 .6 .35 1 .75 .9 .9 .5 .78 .12 .55 .04 .6 .14",
        ".4 .1 .15 .3 .08 .6 .3 .98 .7 .95 .92 .55 .75 .1 .4 .0 .2 .12",
        ".75 .05 .35 .05 .08 .4 .15 .85 .5 1 .85 .8 .9 .35 .65 .02 .3 .1",
    ),
    (
        ".5 0 | .5 1",
        ".58 0 | .44 1",
        ".3 .2 | .55 0 | .55 1",
        ".08 .42 | .55 0 | .55 1",
        ".02 .55 | .55 0 | .52 1",
        ".15 .3 .4 .16 .56 0 | .56 1",
        ".3 .22 | .52 0 | .52 1 ; .22 1 | .8 1",
        ".1 .4 | .52 0 | .52 1 ; .15 1 | .88 1",
        ".25 .25 | .55 0 | .5 1 | .2 1 | .82 1",
        ".52 0 | .52 1 ; .2 1 | .84 1",
        ".4 .08 | .52 0 | .52 1 ; .3 1 | .74 1",
    ),
    (
        ".1 .25 .25 .04 .55 0 .82 .12 .82 .35 .5 .66 .1 1 | .9 1",
        ".12 .28 .2 .06 .5 0 .85 .15 .75 .45 .3 .75 .08 .96 .2 .98 .5 .94 .95 1",
        ".1 .3 .2 .05 .55 0 .82 .2 .7 .5 .35 .85 .15 .98 .08 .85 .25 .8 .5 .95 .75 1 .95 .88",
        ".15 .12 .5 0 .85 .2 .6 .6 .15 1 | .9 .98",
        ".2 .35 .1 .15 .4 0 .8 .1 .78 .4 .4 .75 .08 1 | .92 1 | .94 .88",
        ".1 .25 .3 .02 .7 .04 .8 .3 .6 .65 .3 .95 .1 .95 .12 .78 .35 .8 .6 .96 .98 .9",
        ".2 .2 .45 .0 .75 .15 .7 .5 .4 .85 .15 .98 .02 .85 .2 .72 .5 .88 .8 1 1 .85",
        ".05 .3 .15 .08 .5 .0 .8 .2 .7 .55 .45 .85 .2 .98 .06 .92 .1 .8 .3 .78 .95 .98",
        ".3 .1 .6 .0 .8 .15 .7 .45 .4 .8 .05 .95 .0 .8 .15 .74 .4 .9 1 .96",
    ),
    (
        ".12 .12 .4 0 .78 .08 .78 .36 .4 .46 | .75 .54 .9 .78 .65 .98 .3 1 .06 .86",
        ".1 .02 | .85 .02 | .42 .42 .8 .5 .92 .75 .65 .98 .3 1 .06 .88",
        ".15 .2 .3 .02 .7 .02 .85 .22 .6 .44 .35 .48 .75 .54 .92 .76 .7 .97 .3 .98 .08 .8",
        ".1 .1 .5 0 .82 .2 .5 .46 .86 .7 .55 1 .08 .9",
    ),
    (
        ".62 0 | .05 .68 | .95 .68 ; .7 .4 | .7 1",
        ".7 0 | .05 .7 | .98 .7 ; .7 0 | .7 1",
        ".7 0 | .08 .66 | .96 .66 ; .7 0 | .64 1",
        ".2 0 | .12 .5 | .85 .5 ; .8 0 | .78 1",
        ".25 0 .14 .3 .2 .52 .5 .55 .82 .48 ; .85 .0 | .75 1",
        ".15 .05 | .15 .55 | .95 .55 ; .66 .22 | .66 1",
        ".5 0 | .05 .6 | .9 .6 ; .58 .34 | .5 1",
        ".72 1 | .72 0 | .06 .62 .1 .7 .3 .68 .98 .66",
    ),
    (
        ".85 0 | .2 0 | .14 .44 .5 .36 .84 .5 .9 .76 .65 .98 .3 1 .06 .88",
        ".2 .0 | .16 .42 .5 .38 .86 .55 .84 .85 .5 1 .1 .92 ; .2 .0 | .9 .02",
        ".25 .05 | .18 .45 .55 .4 .88 .6 .8 .9 .45 1 .08 .9 ; .3 .03 | .95 -.04",
        ".9 .03 .5 .0 .25 .04 | .16 .46 .6 .4 .9 .66 .72 .95 .35 1 .05 .9",
        ".8 0 .3 .04 .16 .25 .3 .42 .66 .52 .84 .75 .6 .98 .12 .95",
        ".2 .1 | .3 .45 .6 .4 .85 .6 .75 .9 .4 1 .1 .85 .2 .75 ; .2 .1 | 1 .0",
        ".35 .12 | .2 .45 .5 .5 .7 .7 .5 .95 .05 1 ; .35 .12 | .98 .06",
        ".3 .05 | .2 .5 .55 .4 .86 .65 .7 .95 .35 1 .12 .82 .2 .7 ; .3 .05 | .9 .08",
    ),
    (
        ".7 0 .35 .2 .1 .6 .2 .92 .5 1 .82 .88 .84 .66 .6 .52 .3 .58 .14 .76",
        ".6 0 .25 .35 .08 .7 .3 .98 .65 .96 .85 .75 .66 .55 .35 .58 .12 .78",
        ".85 .08 .55 .02 .2 .3 .1 .7 .4 1 .8 .88 .8 .6 .5 .5 .2 .62",
        ".3 0 .16 .4 .1 .75 .35 1 .7 .94 .8 .7 .5 .56 .16 .72",
    ),
    (
        ".05 .04 | .92 .04 | .4 1",
        ".05 .16 | .1 .03 | .92 .03 | .4 1",
        ".05 .04 | .92 .04 .65 .4 .45 1",
        ".05 .04 | .92 .04 | .4 1 ; .35 .5 | .85 .5",
        ".06 .2 | .06 .04 | .94 .04 | .42 1 ; .3 .48 | .84 .44",
        ".04 .06 .3 .12 .9 .02 | .5 .5 .4 1 ; .34 .52 .6 .46 .82 .52",
        ".1 .03 | .85 .03 | .55 1 ; .36 .46 | .92 .46",
        ".02 .1 .2 .0 .5 .08 .95 .0 | .6 .45 .48 1",
    ),
    (
        ".5 .47 .16 .3 .3 .04 .5 0 .75 .06 .82 .26 .5 .47 .12 .7 .2 .95 .5 1 .82 .94 .9 .7 .5 .47",
        ".82 .14 .5 0 .18 .14 .3 .38 .7 .58 .88 .8 .5 1 .12 .82 .3 .58 .7 .38 .82 .14",
        ".78 .1 .4 .02 .2 .25 .5 .46 .84 .72 .6 1 .2 .92 .2 .66 .55 .44 .8 .2 .7 .04",
        ".5 0 .25 .1 .25 .36 .5 .46 .75 .36 .75 .1 .5 0 ; .5 .46 .14 .6 .14 .88 .5 1 .86 .88 .86 .6 .5 .46",
    ),
    (
        ".84 .28 .7 .05 .4 0 .14 .18 .2 .46 .5 .54 .8 .4 .84 .24 | .84 1",
        ".82 .2 .5 0 .15 .2 .25 .5 .6 .5 .82 .26 .8 .6 .6 1",
        ".84 .2 .5 0 .16 .22 .3 .52 .66 .46 .84 .22 .86 .7 .65 .98 .3 1 .1 .86",
        ".8 .1 .4 .02 .14 .26 .4 .52 .78 .36 .8 .08 .74 .6 .7 1",
        ".86 .05 .4 .0 .14 .26 .4 .5 .72 .36 .86 .05 .84 .6 .6 .95 .2 .98",
        ".75 .15 .45 .02 .1 .2 .06 .42 .3 .5 .6 .38 .78 .12 .7 .5 .62 1",
        ".9 .1 .6 .0 .2 .12 .1 .35 .35 .45 .7 .3 .85 .12 .75 .5 .4 1",
        ".8 .05 .4 .1 .12 .3 .3 .42 .6 .35 .85 .08 | .9 .3 .8 .7 .7 1",
    ),
)


def drawn(count: int, seed: int, trembling: float = STEADY) -> Iterator[tuple[int, Pixels]]:
    """Draw `count` of each digit, laid out as the contract says; the same ones for the same seed."""
    random = np.random.default_rng(seed)
    for digit, ways in enumerate(_WAYS):
        for number in range(count):
            strokes = [_curve(stroke, trembling, random) for stroke in ways[number % len(ways)].split(";")]
            yield digit, contract.layout(_inked(_written(strokes, random), random))


# Printed letters and signs that nobody takes for a digit; O, l, S, Z, b, q and the like are left out.
_SIGNS: Final = "AEFHKMNRVWXkmnrvwx#@+=*"
# Strokes of shapes: triangle, square, star, arrow, heart, house, spiral, zigzag, cross, wave, bar, stairs.
_SHAPES: Final = (
    ".5 0 | .95 .9 | .05 .9 | .5 0",
    ".1 .1 | .9 .1 | .9 .9 | .1 .9 | .1 .1",
    ".5 0 | .8 .95 | .02 .36 | .98 .36 | .2 .95 | .5 0",
    ".05 .5 | .95 .5 | .65 .2 ; .95 .5 | .65 .8",
    ".5 .3 .3 .02 .05 .2 .1 .5 | .5 1 | .9 .5 .95 .2 .7 .02 .5 .3",
    ".1 .45 | .5 0 | .9 .45 | .1 .45 | .1 1 | .9 1 | .9 .45",
    ".5 .5 .6 .45 .62 .6 .5 .7 .35 .6 .35 .4 .55 .25 .8 .4 .8 .7 .5 .9 .15 .75 .1 .35 .5 .05 .95 .2",
    "0 .3 | .2 .7 | .4 .3 | .6 .7 | .8 .3 | 1 .7",
    ".05 .05 | .95 .95 ; .95 .05 | .05 .95",
    "0 .5 .15 .3 .3 .5 .45 .7 .6 .5 .75 .3 .9 .5 1 .6",
    "0 .5 | 1 .48",
    "0 1 | .25 1 | .25 .7 | .5 .7 | .5 .4 | .75 .4 | .75 .1 | 1 .1",
)


def no_digits(count: int, seed: int, trembling: float = STEADY) -> Iterator[Pixels]:
    """Draw scribbles, shapes, and letters, `count` of every kind, laid out like digits."""
    random = np.random.default_rng(seed)
    for number in range(count):
        points = random.uniform(0.0, 1.0, (random.integers(10, 22), 2))
        yield contract.layout(_inked(_written([_smooth(points)], random), random, _THICKEST_SCRIBBLE))
        shape = _SHAPES[number % len(_SHAPES)].split(";")
        strokes = [_curve(stroke, trembling, random) for stroke in shape]
        yield contract.layout(_inked(_written(strokes, random), random))
        yield contract.layout(_letter(_SIGNS[number % len(_SIGNS)], random))


def _letter(sign: str, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Draw a printed `sign`, turned, slanted and with a pen of any width."""
    paper = Image.new("L", (_SIDE, _SIDE))
    pen = int(random.integers(0, 9))
    font = ImageFont.load_default(_SIDE - 2 * _MARGIN)
    middle = (_SIDE / 2, _SIDE / 2)
    ImageDraw.Draw(paper).text(middle, sign, 255, font, anchor="mm", stroke_width=pen, stroke_fill=255)
    slant, turn = random.normal(0.0, 0.2), random.normal(0.0, 8.0)
    slanted = (1.0, slant, -slant * _SIDE / 2, 0.0, 1.0, 0.0)
    return np.asarray(paper.transform(paper.size, Image.Transform.AFFINE, slanted).rotate(turn))


def _curve(stroke: str, trembling: float, random: np.random.Generator) -> Points:
    """Return the points of a stroke by a trembling hand, joined by curves and corners."""
    pieces = [np.array(piece.split(), dtype=float).reshape(-1, 2) for piece in stroke.split("|")]
    pieces = [piece + random.normal(0.0, trembling, piece.shape) for piece in pieces]
    # A corner ends one curve and begins the next.
    joined = [
        piece if before is None else np.concatenate([before[-1:], piece])
        for before, piece in zip([None, *pieces], pieces, strict=False)
    ]
    return np.concatenate([_smooth(piece) for piece in joined])


def _smooth(points: Points) -> Points:
    """Return Catmull and Rom's curve through `points`."""
    if len(points) < 3:
        return points
    padded = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    before, start, end, behind = padded[:-3], padded[1:-2], padded[2:-1], padded[3:]
    t = np.linspace(0.0, 1.0, _STEPS)[:, None, None]
    curve = (
        2 * start
        + (end - before) * t
        + (2 * before - 5 * start + 4 * end - behind) * t**2
        + (3 * start - before - 3 * end + behind) * t**3
    ) / 2
    return np.asarray(curve.transpose(1, 0, 2).reshape(-1, 2))


def _written(strokes: Sequence[Points], random: np.random.Generator) -> list[Points]:
    """Write `strokes` by a hand that slants, narrow or wide."""
    turn, slant = random.normal(0.0, math.radians(7)), random.normal(0.1, 0.2)
    width = random.uniform(0.4, 1.1)
    hand = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    hand = hand @ np.array([[width, -slant], [0.0, 1.0]])
    return [(stroke - 0.5) @ hand.T for stroke in strokes]


def _inked(
    strokes: Sequence[Points], random: np.random.Generator, thickest: float = _THICKEST_PEN
) -> npt.NDArray[np.uint8]:
    pen = math.exp(random.uniform(math.log(_THINNEST_PEN), math.log(thickest))) * (_SIDE - 2 * _MARGIN)
    paper = Image.new("L", (_SIDE, _SIDE))
    draw = ImageDraw.Draw(paper)
    for stroke in strokes:
        points = [(float(x), float(y)) for x, y in stroke * (_SIDE - 2 * _MARGIN) + _SIDE / 2]
        draw.line(points, fill=255, width=max(1, round(pen)))
        for x, y in points:
            draw.ellipse((x - pen / 2, y - pen / 2, x + pen / 2, y + pen / 2), fill=255)
    return np.asarray(paper)
