"""A search that follows several beginnings of an answer at a time, and takes the one that ends best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.slots import Slots


class Found(NamedTuple):
    tokens: list[int]
    score: float  # the logarithm of the probability of all words and the end


def search(
    engine: Engine,
    source: Sequence[int],
    *,
    beams: int,
    most: int,
    pad: int,
    end: int,
    is_over: Callable[[], bool] = lambda: False,
) -> Found:
    """The answer with the best score for each of its words, of those that `beams` beginnings lead to."""
    slots = Slots(engine, beams, pad)
    slots.admit([source])
    begun = [Found([], 0.0)]
    whole: list[Found] = []
    for length in range(1, most + 1):
        likeliest = slots.step()
        candidates = [
            (found.score + float(score), row, int(token))
            for row, found in enumerate(begun)
            for token, score in zip(likeliest.tokens[row], likeliest.scores[row], strict=True)
        ]
        candidates.sort(reverse=True)
        chosen: list[tuple[float, int, int]] = []
        for place, (score, row, token) in enumerate(candidates[: 2 * beams]):
            if token == end:
                if place < beams:
                    whole.append(Found(begun[row].tokens, score))
            elif len(chosen) < beams:
                chosen.append((score, row, token))
        begun = [Found([*begun[row].tokens, token], score) for score, row, token in chosen]
        # Nothing that is begun gets better for each of its words than the best of it is now.
        if len(whole) >= beams and max(map(_worth, whole)) >= begun[0].score / length:
            break
        if is_over():
            break
        if slots.used < len(chosen):
            slots.repeat(0, len(chosen) - slots.used)
        slots.rearrange(0, [row for _, row, _ in chosen])
        slots.choose([token for _, _, token in chosen])
    return max(whole or begun, key=_worth)


def _worth(found: Found) -> float:
    return found.score / (len(found.tokens) + 1)
