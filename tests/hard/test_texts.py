"""Texts when it gets hard: a process of the translator killed, more than can be translated, hostile ones."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.accounting import ANSWERED, REFUSED, SILENT, WRONG, Account, Attempt, Outcome
from support.hostile_texts import hostile_text
from support.product import Product
from support.repeating import Repeating
from support.table import Keep
from support.web_app import Site, WebReply

from gourmet.systems.translator.contract import SYSTEM

pytestmark = pytest.mark.timeout(900)
MODEL = "translator"
TEXTS = [text.decode() for text in SYSTEM.examples(16, seed=2)]
# Enough to take seconds, so that many who ask at once have to wait.
LONG = " ".join(TEXTS * 3)[:1900]
RECOVERS_S = 20.0


class TextsClient:
    """Asks for translations, and judges each by what the same text got in peace."""

    def __init__(self, product: Product) -> None:
        self.web = Site(product.up.port)
        self._known = {text: self._translated(text) for text in (*TEXTS, LONG)}

    def ask(self, text: str) -> Attempt:
        began = time.monotonic()
        outcome, reason = self._judged(text)
        return Attempt(began, began, time.monotonic(), outcome, reason)

    def _judged(self, text: str) -> tuple[Outcome, str]:
        try:
            reply = self._send(text)
        except OSError as exc:
            return SILENT, type(exc).__name__
        if reply.status == 200:
            said = reply.json["translations"][0]["text"]
            return (ANSWERED, "200") if said == self._known.get(text, said) else (WRONG, "other words")
        told = reply.json["error"]
        fine = told["message"] and reply.status in (400, 502, 503, 504)
        return (REFUSED if fine else WRONG), f"{reply.status} {told['code']}"

    def _translated(self, text: str) -> str:
        return str(self._send(text).json["translations"][0]["text"])

    def _send(self, text: str) -> WebReply:
        body = json.dumps({"texts": [text], "options": {"max_tokens": 60}})
        return self.web.request("POST", "/api/v1/translate", body, Content_Type="application/json")


@pytest.fixture(scope="module")
def client(product: Product) -> TextsClient:
    return TextsClient(product)


@contextmanager
def asking(client: TextsClient, threads: int, texts: list[str]) -> Iterator[list[Attempt]]:
    """So many ask all the time while the block runs; what became of it."""
    attempts, draws = list[Attempt](), [random.Random(number) for number in range(threads)]
    with Repeating(lambda thread, _: attempts.append(client.ask(draws[thread].choice(texts))), threads):
        yield attempts


def test_a_process_of_the_translator_is_killed(product: Product, client: TextsClient, table: Keep) -> None:
    with asking(client, 2, TEXTS) as attempts:
        time.sleep(2)
        killed = time.monotonic()
        product.stubs(MODEL)[0].kill()
        time.sleep(RECOVERS_S)
    last = max((each.sent for each in attempts if each.outcome != ANSWERED), default=killed)
    seen = "502, or 503, for what falls to that process, until the model is loaded again"
    recovery_s = max(0.0, last - killed)
    held = {"recovery": recovery_s < RECOVERS_S}
    account = Account(tuple(attempts))
    table(account.row("the translator's process killed (-9)", seen=seen, held=held, recovery_s=recovery_s))


def test_more_texts_than_can_be_translated(client: TextsClient, table: Keep) -> None:
    with asking(client, 24, [LONG]) as attempts:
        time.sleep(30)
    with asking(client, 1, TEXTS) as after:
        time.sleep(3)
    assert {each.outcome for each in after} == {ANSWERED}
    seen = "as many as there is room for are answered, the others refused with a request to come again"
    table(Account(tuple(attempts)).row("24 clients with long texts for 30 s", seen=seen, held={}))


def test_hostile_texts(client: TextsClient, table: Keep) -> None:
    draw = random.Random(9)
    texts = [hostile_text(draw) if number % 8 else TEXTS[0] for number in range(4000)]
    with ThreadPoolExecutor(4) as pool:
        attempts = list(pool.map(client.ask, texts))
    seen = "400 with the reason, or a translation"
    account = Account(tuple(attempts))
    only_bad = {"none but 400": {reason[:3] for reason in account.reasons(REFUSED)} == {"400"}}
    table(account.row("hostile texts, honest ones among them", seen=seen, held=only_bad))
