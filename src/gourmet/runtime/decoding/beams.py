"""A search that follows several beginnings of an answer at a time, and takes the one that ends best.

Each beginning is a row of the loop, and has a place there; this knows what follows from what a step found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gourmet.runtime.decoding.engine import Likeliest


class Found(NamedTuple):
    tokens: list[int]
    score: float  # the logarithm of the probability of all tokens and the end


class BeamSearch:
    """Finds the answers with the best scores for each of their tokens, as many as there are beams."""

    def __init__(self, beams: int, max_tokens: int, end: int, place: int) -> None:
        """It begins with a single place."""
        self._beams, self._max_tokens, self._end = beams, max_tokens, end
        # Where the beginnings are in the loop, the likeliest first.
        self.places = [place]
        self._begun = [Found([], 0.0)]
        self._whole: list[Found] = []
        self.answers: Sequence[Found] = ()  # at the end, the best first

    def advance(self, likeliest: Likeliest) -> Sequence[tuple[int, int]]:
        """By which token, after what is at which place, each beginning goes on; none at the end."""
        beams, end = self._beams, self._end
        tokens, scores = (each[self.places].tolist() for each in (likeliest.tokens, likeliest.scores))
        candidates = [
            (found.score + score, rank, token)
            for rank, found in enumerate(self._begun)
            for token, score in zip(tokens[rank], scores[rank], strict=True)
        ]
        candidates.sort(reverse=True)
        chosen: list[tuple[float, int, int]] = []
        for number, (score, rank, token) in enumerate(candidates[: 2 * beams]):
            if token == end:
                if number < beams:
                    self._whole.append(Found(self._begun[rank].tokens, score))
            elif len(chosen) < beams:
                chosen.append((score, rank, token))
        self._begun = [Found([*self._begun[rank].tokens, token], score) for score, rank, token in chosen]
        if self._is_over():
            self.answers = sorted(self._whole or self._begun, key=_worth, reverse=True)[:beams]
            return ()
        return [(self.places[rank], token) for _, rank, token in chosen]

    def _is_over(self) -> bool:
        best, length = self._begun[0], len(self._begun[0].tokens)
        if length >= self._max_tokens:
            return True
        # Nothing that is begun gets better for each of its tokens than the best of it is now.
        return len(self._whole) >= self._beams and max(map(_worth, self._whole)) >= best.score / length

    def move(self, places: Sequence[int], parents: Sequence[int]) -> Mapping[int, int]:
        """Each beginning has one of these places from now on; those of whom it has to be told what their
        parent has said, with the parent. The others stay where that is.
        """
        unused = iter([place for place in places if place not in parents])
        copied: dict[int, int] = {}
        self.places = []
        for parent in parents:
            place = next(unused) if parent in self.places else parent
            if place != parent:
                copied[place] = parent
            self.places.append(place)
        return copied


def _worth(found: Found) -> float:
    return found.score / (len(found.tokens) + 1)
