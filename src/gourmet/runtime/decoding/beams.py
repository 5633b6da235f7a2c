"""Beam search: follow several beginnings of an answer, and keep the ones that end best.

Each beam is a row of the loop. `places` are the indices of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gourmet.runtime.decoding.engine import Likeliest


class Hypothesis(NamedTuple):
    tokens: list[int]
    score: float  # the log probability of all tokens, the end included


class BeamSearch:
    """Find as many answers as there are beams, with the best mean log probability of a token."""

    def __init__(self, beams: int, max_tokens: int, end: int, place: int) -> None:
        """Begin with a single row, at `place`."""
        self._beams, self._max_tokens, self._end = beams, max_tokens, end
        self.places = [place]  # of the unfinished hypotheses, the likeliest first
        self._begun = [Hypothesis([], 0.0)]
        self._whole: list[Hypothesis] = []
        self.answers: Sequence[Hypothesis] = ()  # at the end, the best first

    def advance(self, likeliest: Likeliest) -> Sequence[tuple[int, int]]:
        """Return the place of the parent and the next token of each beam; nothing when the search is over."""
        beams, end = self._beams, self._end
        tokens, scores = (array[self.places].tolist() for array in (likeliest.tokens, likeliest.scores))
        candidates = [
            (begun.score + score, rank, token)
            for rank, begun in enumerate(self._begun)
            for token, score in zip(tokens[rank], scores[rank], strict=True)
        ]
        candidates.sort(reverse=True)
        chosen: list[tuple[float, int, int]] = []
        for number, (score, rank, token) in enumerate(candidates[: 2 * beams]):
            if token == end:
                if number < beams:
                    self._whole.append(Hypothesis(self._begun[rank].tokens, score))
            elif len(chosen) < beams:
                chosen.append((score, rank, token))
        self._begun = [Hypothesis([*self._begun[rank].tokens, token], score) for score, rank, token in chosen]
        if self._is_over():
            self.answers = sorted(self._whole or self._begun, key=_mean_score, reverse=True)[:beams]
            return ()
        return [(self.places[rank], token) for _, rank, token in chosen]

    def _is_over(self) -> bool:
        best, length = self._begun[0], len(self._begun[0].tokens)
        if length >= self._max_tokens:
            return True
        # The mean score of an unfinished hypothesis never rises above the best one's now.
        return len(self._whole) >= self._beams and max(map(_mean_score, self._whole)) >= best.score / length

    def move(self, places: Sequence[int], parents: Sequence[int]) -> Mapping[int, int]:
        """Give each beam one of these places. Return the parent of each place whose cache must be copied.

        The first child of a parent stays at the parent's place.
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


def _mean_score(hypothesis: Hypothesis) -> float:
    return hypothesis.score / (len(hypothesis.tokens) + 1)
