"""CIDEr-D (Vedantam, Zitnick, Parikh: CVPR 2015): how much of what people said of a photo a caption says.
Each run of one to four words counts by how few photos it is said of.

Texts are lower case without punctuation, as COCO's evaluation has them; its tokenizer is a Java program, and
this one is named in what is reported.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

TOKENIZER: Final = "lower case, words of letters, digits and inner ' and -, 's apart, no punctuation"
_RUNS: Final = 4
_DEVIATION: Final = 6.0
_WORD: Final = re.compile(r"'s\b|[^\W_]+(?:-[^\W_]+|'(?!s\b)[^\W_]+)*")

_Vector = tuple[dict[tuple[str, ...], float], ...]


def scored_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _counted(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(
        tuple(words[first : first + length])
        for length in range(1, _RUNS + 1)
        for first in range(len(words) - length + 1)
    )


class Cider:
    """CIDEr-D of captions for photos with `references`, which also tell how rare each run of words is."""

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        counted = [[_counted(scored_words(text)) for text in texts] for texts in references]
        self._photos = math.log(max(1, len(references)))
        self._seen_in = Counter(run for each in counted for run in set().union(*each))
        self._references = [[self._weighed(counts) for counts in each] for each in counted]

    def score(self, photo: int, text: str) -> float:
        found, norms, length = self._weighed(_counted(scored_words(text)))
        scores = []
        for reference, right, how_long in self._references[photo]:
            likeness = 0.0
            for runs, ours, norm, theirs in zip(found, reference, norms, right, strict=True):
                both = sum(min(value, ours[run]) * ours[run] for run, value in runs.items() if run in ours)
                likeness += both / (norm * theirs) if norm and theirs else 0.0
            scores.append(likeness * math.exp(-((length - how_long) ** 2) / (2 * _DEVIATION**2)))
        return 10.0 * sum(scores) / len(scores) / _RUNS

    def mean(self, texts: Sequence[str]) -> float:
        """Return the mean score of one text for each photo."""
        return sum(self.score(photo, text) for photo, text in enumerate(texts)) / len(texts)

    def _weighed(self, counts: Counter[tuple[str, ...]]) -> tuple[_Vector, list[float], int]:
        """Weigh the runs of words by length; return them with their norms and the number of word pairs."""
        vector: _Vector = ({}, {}, {}, {})
        for run, count in counts.items():
            vector[len(run) - 1][run] = count * (self._photos - math.log(max(1, self._seen_in[run])))
        norms = [math.sqrt(sum(value * value for value in runs.values())) for runs in vector]
        return vector, norms, sum(count for run, count in counts.items() if len(run) == 2)
