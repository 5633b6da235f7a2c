"""A search that follows several beginnings of an answer at a time, and takes the one that ends best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Row
from gourmet.runtime.decoding.slots import Slots


class Found(NamedTuple):
    tokens: list[int]
    score: float  # the logarithm of the probability of all tokens and the end


def search(engine: Engine, row: Row, *, start: int, end: int) -> Iterator[None]:
    """Find the answer with the best score for each of its tokens, of those that the row's beams lead to.

    It yields after each step, so that others can have theirs in between. When the row finishes meanwhile, its
    answer is the best so far.
    """
    beams = row.beams
    slots = Slots(engine, beams, start)
    slots.admit(engine.encode([row.source]))
    for token in row.prefix:
        slots.step()
        slots.choose([token])
        yield
    begun = [Found([], 0.0)]
    whole: list[Found] = []
    for length in range(1, row.max_tokens + 1):
        likeliest = slots.step()
        candidates = [
            (found.score + float(score), place, int(token))
            for place, found in enumerate(begun)
            for token, score in zip(likeliest.tokens[place], likeliest.scores[place], strict=True)
        ]
        candidates.sort(reverse=True)
        chosen: list[tuple[float, int, int]] = []
        for rank, (score, place, token) in enumerate(candidates[: 2 * beams]):
            if token == end:
                if rank < beams:
                    whole.append(Found(begun[place].tokens, score))
            elif len(chosen) < beams:
                chosen.append((score, place, token))
        begun = [Found([*begun[place].tokens, token], score) for score, place, token in chosen]
        # Nothing that is begun gets better for each of its tokens than the best of it is now.
        if len(whole) >= beams and max(map(_worth, whole)) >= begun[0].score / length:
            break
        if row.gave_up():
            break
        slots.take([place for _, place, _ in chosen])
        slots.choose([token for _, _, token in chosen])
        yield
    best, *others = sorted(whole or begun, key=_worth, reverse=True)[:beams]
    row.tokens, row.score = best
    row.others = [found.tokens for found in others]
    if not row.finished:
        row.finish("stop")


def _worth(found: Found) -> float:
    return found.score / (len(found.tokens) + 1)
