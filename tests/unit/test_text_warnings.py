"""What is told beside a translation: the network answers anything and never says that it does not know."""

from __future__ import annotations

import pytest

from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.texts import looks_russian, warning, without_capitals

# What translator version 1 answered.
DOUBTFUL = [
    ("Hello, how are you?", "Gold, is the survey?", "does not look Russian"),
    ("Він любить каву і чай.", "Whether to like the girl  ⁇   ⁇  tea.", "the letters і: this may be Ukr"),
    ("Як справи? Ми їдемо до Києва.", "Am I a sand? My idea is to Kyo.", "the letters є, ї:"),
    ("Я ЛЮБЛЮ ЧАЙ.", "I like tea.", "the text is in capitals"),
    ("Он родился в 1869 году.", "He was born in 1896.", "not in the translation as written: 1869"),
    ("Это стоит 1 299 рублей.", "This costs 199 roubles.", "as written: 1 299"),
    ("Мой телефон +7 912 345-67-89.", "My phone is 927-75-96.", "as written: 7 912 345, 67, 89"),
    ("У меня 2 кошки и 2 собаки.", "I have 2 cats and dogs.", "as written: 2"),
    ("Привет 😀", "Hello  ⁇ ", "as written: 😀; ⁇ stands for a sign that the model does not know"),
    ("Я живу в Berlin.", "I live in Bell.", "as written: Berlin"),
    ("Напиши мне сегодня на ivan@example.com.", "Write on  ⁇ xox.", "as written: ivan@example.com;"),
]
FINE = [
    ("Я люблю чай.", "I like tea."),
    ("Это стоит 1 299 рублей.", "This costs 1,299 roubles."),
    ("Температура 3,5 градуса.", "The temperature is 3.5 degrees."),
    ("Встретимся в 10:30 у дома № 5.", "Let's meet at 10:30 at house No. 5."),
    ("Привет, Anna 😀!", "Hello, Anna 😀!"),
    ("США — большая страна, и ё тоже буква.", "The US is a big country, and ё is a letter, too."),
    ("НЕТ", "No"),
    ("12345", "12345"),
]


@pytest.mark.parametrize(("text", "translation", "words"), DOUBTFUL)
def test_a_doubtful_translation_has_a_warning(text: str, translation: str, words: str) -> None:
    assert words in warning(text, translation)


@pytest.mark.parametrize(("text", "translation"), FINE)
def test_a_good_translation_has_no_warning(text: str, translation: str) -> None:
    assert warning(text, translation) == ""


def test_every_example_is_sent_as_it_is_and_its_meaning_is_never_doubted() -> None:
    for text, meaning in SYSTEM.meanings.items():
        assert looks_russian(text)
        assert without_capitals(text) == text
        assert warning(text, meaning) == ""


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("ВНИМАНИЕ! ДВЕРЬ ОТКРЫТА.\n«НЕ ВХОДИТЬ»", "Внимание! Дверь открыта.\n«Не входить»"),
        ("США", "США"),
        ("Это ОЧЕНЬ важно.", "Это ОЧЕНЬ важно."),
        ("HELLO, HOW ARE YOU?", "HELLO, HOW ARE YOU?"),
    ],
)
def test_a_text_in_capitals_is_sent_in_lower_case_and_no_other_is_changed(text: str, sent: str) -> None:
    model = ModelInfo("translator", (TensorSpec("TEXT", "BYTES", (-1, 1)),), (), max_batch_size=8)
    assert SYSTEM.request_inputs(text.encode(), model)["TEXT"].item() == sent.encode()
