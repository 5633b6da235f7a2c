"""A text as sentences, which networks know, and what lies between them; joined again, all of it is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_CLOSERS: Final = "\"'»”’)\\]"
# A sentence ends at its sign, and what closes with it, where a space and something that may begin one follow.
_END: Final = re.compile(rf"[.!?…]+[{_CLOSERS}]*(?=\s+[\"'«“„(\[—–-]*\s?[A-ZА-ЯЁ0-9])|\n")
# Not after these, nor after a letter alone, which is somebody's initial.
_SHORT: Final = re.compile(
    r"(?:^|[\s(«\"])(?:[A-ZА-ЯЁа-яё]|т\. ?[едпк]|др|пр|см|ср|стр|рис|тыс|млн|млрд|руб|коп|ул|пл|кв|им|проф"
    r"|акад|гг?|вв?|Mr|Mrs|Ms|Dr|St|etc|e\. ?g|i\. ?e)\.$"
)
_LONGEST_SHORT: Final = 7
_PAUSE: Final = re.compile(r"(?<=[,;:])\s+|\s+[—–-]\s+")
_SPACE: Final = re.compile(r"\s+")


class TextPart(NamedTuple):
    """A sentence, or what is between two of them, to be kept as it is."""

    text: str
    is_sentence: bool


def at_most(text: str) -> int:
    """As many sentences as a text may have by its signs and lines; some of them may be abbreviations."""
    return sum(1 for piece in _END.split(text) if piece and not piece.isspace())


def split(text: str, size: Callable[[str], int], max_size: int) -> list[TextPart]:
    """Sentences of at most `max_size` by their `size`: a longer one is cut at a pause, or else at a space."""
    found: list[TextPart] = []
    for sentence in _sentences(text):
        bare = sentence.strip()
        before, _, after = sentence.partition(bare) if bare else (sentence, "", "")
        found += [TextPart(before, False)] if before else []
        found += list(_cut(bare, size, max_size)) if bare else []
        found += [TextPart(after, False)] if after else []
    return found


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in _END.finditer(text):
        if end[0] == "\n" or not _SHORT.search(text, max(begin, end.end() - _LONGEST_SHORT), end.end()):
            yield text[begin : end.end()]
            begin = end.end()
    if begin < len(text):
        yield text[begin:]


def _cut(sentence: str, size: Callable[[str], int], max_size: int) -> Iterator[TextPart]:
    """In halves until each is short enough; the space at a cut does not belong to a sentence."""
    if size(sentence) <= max_size or len(sentence) < 2:
        yield TextPart(sentence, True)
        return
    middle = len(sentence) // 2
    for pattern in (_PAUSE, _SPACE):
        if places := list(pattern.finditer(sentence)):
            nearest = min(places, key=lambda place: abs(place.start() - middle))
            before, between, after = sentence[: nearest.start()], nearest[0], sentence[nearest.end() :]
            if before and after:
                break
    else:
        before, between, after = sentence[:middle], "", sentence[middle:]
    yield from _cut(before, size, max_size)
    if between:
        yield TextPart(between, False)
    yield from _cut(after, size, max_size)
