"""Sentences of a text, and warnings about its translation, without a network.

Sentences and what lies between them, joined again, are the text. The network answers anything and never says
that it does not know: the page, the API and `gourmet translate` say the same of an answer that is doubtful.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_CLOSERS: Final = "\"'»”’)\\]"
# A sentence ends with its punctuation and closing quotes, where a space and a capital or a digit follow.
# Possessive quantifiers: without them the time grows with the square of the number of signs.
_END: Final = re.compile(
    rf"(?<![.!?…])[.!?…]++[{_CLOSERS}]*+(?=\s++[\"'«“„(\[—–-]*+\s?[A-ZÀ-ÖØ-ÞА-ЯЁ0-9])|\n"
)
# A sentence does not end after these abbreviations, nor after a single letter, which is an initial.
_SHORT: Final = re.compile(
    r"(?:^|[\s(«\"])(?:[A-ZА-ЯЁа-яё]|т\. ?[едпк]|др|пр|см|ср|стр|рис|тыс|млн|млрд|руб|коп|ул|пл|кв|им|проф"
    r"|акад|гг?|вв?|Mr|Mrs|Ms|Dr|St|etc|e\. ?g|i\. ?e)\.$"
)
_LONGEST_SHORT: Final = 7
_PAUSE: Final = re.compile(r"(?<=[,;:])\s++|(?<!\s)\s++[—–-]\s++")
_SPACE: Final = re.compile(r"\s++")
HARDLY_RUSSIAN: Final = "this text does not look Russian, so the translation may be meaningless"
OTHER_CYRILLIC: Final = (
    "Russian does not have the letters {letters}: this may be Ukrainian or another language, and the"
    " translation meaningless"
)
# Without the letters that Russian lost in 1918.
_RUSSIAN_LETTER: Final = "[а-яё]"
_OTHER_LETTER: Final = "[ѐђ-ԯ]"
# For the page's script, which warns while the visitor types.
FOR_SCRIPTS: Final = {
    "russian": _RUSSIAN_LETTER,
    "others": _OTHER_LETTER,
    "hardly_russian": HARDLY_RUSSIAN,
    "other_cyrillic": OTHER_CYRILLIC,
}
_LETTERS: Final = re.compile(r"[^\W\d_]")
_RUSSIAN: Final = re.compile(_RUSSIAN_LETTER, re.IGNORECASE)
_OTHER: Final = re.compile(_OTHER_LETTER)
# A space or a comma within a number, as in 1 299 or 3,5.
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+|[ \u00a0\u202f]\d{3}(?!\d))*")
_LATIN: Final = re.compile(r"[A-Za-z](?:[\w.@/:-]*\w)?", re.ASCII)
_UNKNOWN: Final = "⁇"
# Parts of a pictogram: the joiner, the variation selector and skin tones.
_JOINED: Final = "\u200d\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
# Texts with fewer capitals are abbreviations.
_CAPITALS: Final = 5
_MAX_NAMED: Final = 8
_FIRST_LETTER: Final = re.compile(r"(?:^|[.!?…]\s|\n)\W{0,3}\w")


class TextPart(NamedTuple):
    """A sentence, or the text between two sentences, which stays unchanged."""

    text: str
    is_sentence: bool


def at_most(text: str) -> int:
    """Return an upper bound for the sentences of a text, by its signs and lines."""
    return sum(1 for piece in _END.split(text) if piece and not piece.isspace())


def split(text: str, size: Callable[[str], int], max_size: int) -> list[TextPart]:
    """Split a text into sentences of at most `max_size`; cut a longer one at a pause, or else at a space.

    What has no letter in it, such as a number or a pictogram alone, is the same in any language.
    """
    parts: list[TextPart] = []
    for sentence in _sentences(text):
        bare = _without_pictograms(sentence)
        before, _, after = sentence.partition(bare) if bare else (sentence, "", "")
        parts += [TextPart(before, False)] if before else []
        if _LETTERS.search(bare):
            parts += _cut(bare, size, max_size)
        elif bare:
            parts.append(TextPart(bare, False))
        parts += [TextPart(after, False)] if after else []
    return parts


def _without_pictograms(sentence: str) -> str:
    """Remove the space and the pictograms around a text: no network here knows them."""
    begin, end = 0, len(sentence)
    while end and _is_around(sentence[end - 1]):
        end -= 1
    while begin < end and _is_around(sentence[begin]):
        begin += 1
    return sentence[begin:end]


def _is_around(sign: str) -> bool:
    return not sign.isalnum() and (sign.isspace() or sign in _JOINED or _is_pictogram(sign))


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in _END.finditer(text):
        if end[0] == "\n" or not _SHORT.search(text, max(begin, end.end() - _LONGEST_SHORT), end.end()):
            yield text[begin : end.end()]
            begin = end.end()
    if begin < len(text):
        yield text[begin:]


def _cut(sentence: str, size: Callable[[str], int], max_size: int) -> Iterator[TextPart]:
    """Halve a sentence until each part is short enough; the space at a cut belongs to neither part."""
    if size(sentence) <= max_size or len(sentence) < 2:
        yield TextPart(sentence, True)
        return
    middle = len(sentence) // 2
    for pattern in (_PAUSE, _SPACE):
        if pauses := list(pattern.finditer(sentence)):
            nearest = min(pauses, key=lambda pause: abs(pause.start() - middle))
            before, between, after = sentence[: nearest.start()], nearest[0], sentence[nearest.end() :]
            if before and after:
                break
    else:
        before, between, after = sentence[:middle], "", sentence[middle:]
    yield from _cut(before, size, max_size)
    if between:
        yield TextPart(between, False)
    yield from _cut(after, size, max_size)


def looks_russian(text: str) -> bool:
    """Return True if most letters are Russian, or if there are none."""
    letters = len(_LETTERS.findall(text))
    return not letters or 2 * len(_RUSSIAN.findall(text)) >= letters


def without_capitals(text: str) -> str:
    """Return a text in capitals in usual case: the network has seen no capitals and makes up words."""
    if not _in_capitals(text):
        return text
    return _FIRST_LETTER.sub(lambda begin: begin[0].upper(), text.lower())


def warning(text: str, translation: str) -> str:
    """Return what is doubtful about a translation from Russian, or an empty text."""
    if not looks_russian(text):
        return HARDLY_RUSSIAN
    warnings = []
    if others := sorted(set(_OTHER.findall(text.lower()))):
        warnings.append(OTHER_CYRILLIC.format(letters=", ".join(others)))
    if _in_capitals(text):
        warnings.append(
            "the text is in capitals, which the model does not know: it was translated in lower case"
        )
    return "; ".join([*warnings, *doubts(text, translation)])


def doubts(text: str, translation: str) -> list[str]:
    """Return what is doubtful about a translation from any language."""
    warnings = []
    if missing := _missing(text, translation):
        more = ["…"] if len(missing) > _MAX_NAMED else []
        warnings.append(f"not in the translation as written: {', '.join(missing[:_MAX_NAMED] + more)}")
    if _UNKNOWN in translation and _UNKNOWN not in text:
        warnings.append(f"{_UNKNOWN} stands for a sign that the model does not know")
    return warnings


def _in_capitals(text: str) -> bool:
    return text.isupper() and len(_RUSSIAN.findall(text)) >= _CAPITALS


def _missing(text: str, translation: str) -> list[str]:
    """Return numbers, pictograms and Latin names that should have been copied."""
    numbers = Counter(_digits(number) for number in _NUMBER.findall(translation))
    missing = []
    for number in _NUMBER.findall(text):
        if numbers[digits := _digits(number)]:
            numbers[digits] -= 1
        else:
            missing.append(number)
    words = {word.lower() for word in _LATIN.findall(translation)}
    if 2 * sum(letter.isascii() for letter in _LETTERS.findall(text)) <= len(_LETTERS.findall(text)):
        missing += [word for word in _LATIN.findall(text) if word.lower() not in words]
    missing += [sign for sign in text if _is_pictogram(sign) and sign not in translation]
    return list(dict.fromkeys(missing))


def _digits(number: str) -> str:
    return re.sub(r"\D", "", number)


def _is_pictogram(sign: str) -> bool:
    return unicodedata.category(sign) == "So" and sign not in "№°"
