"""Texts when it gets hard: a process of the translator killed, more than can be translated, hostile ones."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.accounting import ANSWERED, REFUSED, SILENT, WRONG, Account, Attempt, Outcome
from support.hostile_texts import hostile_text
from support.product import Product
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


def asked_until(
    client: TextsClient, over: threading.Event, threads: int, texts: list[str]
) -> Iterator[Attempt]:
    def ask(number: int) -> list[Attempt]:
        found = []
        draw = random.Random(number)
        while not over.is_set():
            found.append(client.ask(draw.choice(texts)))
        return found

    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(ask, range(threads)):
            yield from found


def test_a_process_of_the_translator_is_killed(product: Product, client: TextsClient, table: Keep) -> None:
    over, killed = threading.Event(), list[float]()

    def kill() -> None:
        time.sleep(2)
        killed.append(time.monotonic())
        product.stubs(MODEL)[0].kill()
        time.sleep(RECOVERS_S)
        over.set()

    threading.Thread(target=kill).start()
    attempts = list(asked_until(client, over, 2, TEXTS))
    last = max((each.sent for each in attempts if each.outcome != ANSWERED), default=killed[0])
    seen = "502, or 503, for what falls to that process, until the model is loaded again"
    recovery_s = max(0.0, last - killed[0])
    held = {"recovery": recovery_s < RECOVERS_S}
    account = Account(tuple(attempts))
    table(account.row("the translator's process killed (-9)", seen=seen, held=held, recovery_s=recovery_s))


def test_more_texts_than_can_be_translated(client: TextsClient, table: Keep) -> None:
    over = threading.Event()
    threading.Timer(30, over.set).start()
    attempts = list(asked_until(client, over, 24, [LONG]))
    over.clear()
    threading.Timer(3, over.set).start()
    after = list(asked_until(client, over, 1, TEXTS))
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
