"""Texts for the translator: what is refused, taken apart, joined again, and doubted."""

from __future__ import annotations

import io
import json
import random
import time

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from support import hostile

from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.systems.translator.contract import MAX_CHARACTERS, SYSTEM, problem, text_of
from gourmet.systems.translator.serving import MAX_SOURCE_TOKENS
from gourmet.systems.translator.texts import looks_russian, split, warning, without_capitals
from gourmet.systems.translator.tokenizer import (
    END,
    PAD,
    SOURCE,
    TARGET,
    UNKNOWN,
    VOCABULARY,
    Tokenizer,
    learn,
)

MANY = 3_000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Of the examples' own words: everything else is unknown to it, or a letter at a time."""
    return Tokenizer(learn([text.decode() for text in SYSTEM.examples(32, seed=0)], 150))


def test_characters_that_expand_count_by_their_expanded_length(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="stand for 36,000 others; at most 4,000 are read"):
        text_of("\ufdfa" * MAX_CHARACTERS)
    assert not problem("Да… " * (MAX_CHARACTERS // 4)), "three dots are one character"


def test_a_hostile_text_is_refused_or_taken_apart_and_joined_again(tokenizer: Tokenizer) -> None:
    taken, draw = 0, random.Random(20)
    for text in (hostile.text(draw) for _ in range(MANY)):
        if why := problem(text):
            assert why.startswith("the text ")
            assert len(why) < 200
            with pytest.raises(ValueError, match="the text "):
                text_of(text)
            continue
        taken += 1
        assert text_of(text.encode()) == text
        assert len(warning(text, "")) < 3000
        result = split(text, lambda piece: len(tokenizer.encode(piece)), MAX_SOURCE_TOKENS)
        assert "".join(part.text for part in result) == text
        sentences = [part.text for part in result if part.is_sentence]
        assert all(sentence.strip() for sentence in sentences)
        for sentence in sentences:
            numbers = tokenizer.encode(sentence)
            assert len(numbers) <= MAX_SOURCE_TOKENS or len(sentence) < 2
            tokenizer.decode(numbers)
    assert taken > MANY / 3


@pytest.mark.parametrize("text", ["a" * 2_000_000, "д. " * 600_000, "\u0301" * 2_000_000])
def test_two_million_characters_are_refused_before_anything_is_done_with_them(text: str) -> None:
    began = time.thread_time()
    assert "at most 2,000" in problem(text)
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    "text", ["." * MAX_CHARACTERS, "(" * MAX_CHARACTERS, ".\n" * 1000, "А. " * 666, "!» " * 666]
)
def test_no_text_takes_the_splitter_long(tokenizer: Tokenizer, text: str) -> None:
    began = time.thread_time()
    result = split(text, lambda piece: len(tokenizer.encode(piece)), MAX_SOURCE_TOKENS)
    assert "".join(part.text for part in result) == text
    assert time.thread_time() - began < 2


@pytest.fixture(scope="module")
def of_bytes() -> Tokenizer:
    """As some public checkpoints cut what they do not know: a letter is several pieces."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["a cat and a dog"]),
        model_writer=model,
        vocab_size=270,
        hard_vocab_limit=False,
        byte_fallback=True,
        eos_id=0,
        pad_id=1,
        unk_id=2,
        bos_id=-1,
        eos_piece=END,
        pad_piece=PAD,
        unk_piece=UNKNOWN,
        minloglevel=2,
    )
    processor = SentencePieceProcessor(model_proto=model.getvalue())
    ids = {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}
    return Tokenizer(
        {SOURCE: model.getvalue(), TARGET: model.getvalue(), VOCABULARY: json.dumps(ids).encode()}
    )


@pytest.mark.parametrize("of", ["tokenizer", "of_bytes"])
def test_settled_text_of_a_stream_never_changes(of: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(of)
    draw, early = random.Random(4), 0
    texts = ["a cat и кот 猫 🐈 a dog", "猫猫🐈", ""]
    answers = [tokenizer.encode(text)[:-1] for text in texts]
    pieces = [number for number in range(tokenizer.size) if number not in (tokenizer.end, tokenizer.pad)]
    answers += [draw.choices(pieces, k=12) for _ in range(300)]
    for numbers in answers:
        whole = tokenizer.decode(numbers)
        for count in range(len(numbers) + 1):
            settled = tokenizer.settled(numbers[:count])
            assert whole.startswith(tokenizer.decode(numbers[:settled]))
            early += settled == count
    assert early > 300


# Warnings
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
