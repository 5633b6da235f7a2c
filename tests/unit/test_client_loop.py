"""The translator's own client, which turns the loop itself: a request a word, until it has its answer."""

from __future__ import annotations

import numpy as np
import pytest

from gourmet.measure import client_loop
from gourmet.systems.translator.client_loop import PLACES, TranslatorLoop


class Tokens:
    pad, end = 1, 0

    def encode(self, text: str) -> list[int]:
        return [*map(ord, text), self.end]

    def decode(self, numbers: list[int]) -> str:
        return "".join(map(chr, numbers))


def scores(*pieces: int) -> dict[str, np.ndarray]:
    """Each place says its piece; a pad is likelier, and no word."""
    found = np.zeros((1, PLACES, 128), np.float32)
    for place in range(PLACES):
        found[0, place, pieces[min(place, len(pieces) - 1)]] = 2
        found[0, place, Tokens.pad] = 3
    return {"output": found}


def test_the_translator_s_client_reads_the_newest_place_and_sends_all_words_so_far() -> None:
    loop = TranslatorLoop()
    loop.__dict__["tokenizer"] = Tokens()
    asking = loop.ask(b"xyz")
    sent = next(asking)
    assert sent["source"][0, :5].tolist() == [*map(ord, "xyz"), 0, 1]
    said = scores(ord("a"), ord("b"), Tokens.end)
    for so_far in ("a", "ab"):
        sent = asking.send(said)
        assert sent["target"][0, : len(so_far) + 2].tolist() == [1, *map(ord, so_far), 1]
    with pytest.raises(StopIteration) as done:
        asking.send(said)
    assert done.value.value["TRANSLATION"].item() == b"ab"
    assert done.value.value["TOKENS"].item() == 2


def test_an_answer_without_an_end_is_as_long_as_there_are_places() -> None:
    loop = TranslatorLoop()
    loop.__dict__["tokenizer"] = Tokens()
    asking = loop.ask(b"x")
    next(asking)
    for _ in range(PLACES - 1):
        asking.send(scores(ord("a")))
    with pytest.raises(StopIteration) as done:
        asking.send(scores(ord("a")))
    assert done.value.value["TOKENS"].item() == PLACES


def test_a_system_without_such_a_client_says_so() -> None:
    with pytest.raises(Exception, match=r"has no client_loop\.py"):
        client_loop.of("digits")
