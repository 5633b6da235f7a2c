"""The translator's six models on the real server: the same words by every way, anyone else there or not."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.http as triton_http
from support.hostile_rows import stubs
from support.triton import MODELS, RunningTriton

from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import wait_for
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.serving.connect import ask_sample
from gourmet.serving.waiting import wait_until
from gourmet.systems.translator.contract import MOST_CHARACTERS, SYSTEM
from gourmet.systems.translator.serving import SERVING
from gourmet.systems.translator.tokenizer import Tokenizer

TEXTS = [text.decode() for text in SYSTEM.examples(24, seed=3)]
# One sentence without a pause to cut it at, of about as many pieces as a sentence may have.
# Of different things, since of the same ones again and again the network makes a few words.
LONG = (
    "Утром мой брат пьёт чай и читает книгу, днём моя сестра идёт в школу и пишет письмо, вечером наш отец "
    "готовит ужин и смотрит телевизор, а ночью моя мама поёт песню и закрывает окно, потому что на улице "
    "идёт снег и дует холодный ветер."
)
Translated = tuple[str, int, float]


@pytest.fixture(scope="module")
def client(triton: RunningTriton) -> Iterator[triton_http.InferenceServerClient]:
    with triton_http.InferenceServerClient(triton.http_url, concurrency=16, network_timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def alone() -> list[Translated]:
    """What the loop answers each text in this process, when nobody else is there."""
    network = SERVING.open(package.read(MODELS / "translator" / "1" / package.FILE), 1)
    start, end = network.vocabulary.start, network.vocabulary.end
    room = GenerationRoom(network.engine, start=start, end=end, max_rows=16)
    found = [wait_for([network.parts(text)], network, room, within_s=60)[0] for text in TEXTS]
    room.close()
    return [(each.text, each.tokens or 0, each.score or 0.0) for each in found]


def given(texts: Sequence[str | bytes], **options: int) -> list[triton_http.InferInput]:
    rows = [text.encode() if isinstance(text, str) else text for text in texts]
    inputs = [triton_http.InferInput("TEXT", [len(rows), 1], "BYTES")]
    inputs[0].set_data_from_numpy(np.array(rows, np.object_)[:, None])
    for name, value in options.items():
        inputs.append(triton_http.InferInput(name, [len(rows), 1], "INT32"))
        inputs[-1].set_data_from_numpy(np.full((len(rows), 1), value, np.int32))
    return inputs


def translations(result: triton_http.InferResult) -> list[Translated]:
    columns = [result.as_numpy(name).ravel().tolist() for name in ("TRANSLATION", "TOKENS", "SCORE")]
    return [(text.decode(), tokens, score) for text, tokens, score in zip(*columns, strict=True)]


def streamed(triton: RunningTriton, text: str, **more: Any) -> Iterator[dict[str, Any]]:
    """Each event of Triton's own generate_stream, as curl would show it."""
    connection = http.client.HTTPConnection(triton.http_url, timeout=120)
    with closing(connection):
        connection.request(
            "POST", "/v2/models/translator_stream/generate_stream", json.dumps({"TEXT": text, **more})
        )
        response = connection.getresponse()
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def same(found: Sequence[Translated], wanted: Sequence[Translated]) -> bool:
    return [each[:2] for each in found] == [each[:2] for each in wanted] and np.allclose(
        [each[2] for each in found], [each[2] for each in wanted], atol=1e-4
    )


def test_the_words_are_those_of_the_loop_alone_however_texts_are_cut_and_merged(
    client: triton_http.InferenceServerClient, alone: list[Translated]
) -> None:
    random = np.random.default_rng(4)
    cuts = [random.integers(0, len(TEXTS), random.integers(1, 9)) for _ in range(20)]
    waiting = [client.async_infer("translator", given([TEXTS[row] for row in rows])) for rows in cuts]
    for rows, request in zip(cuts, waiting, strict=True):
        assert same(translations(request.get_result()), [alone[row] for row in rows])


@pytest.mark.smoke
@pytest.mark.parametrize("model", ["translator", "translator_stream", "translator_bls"])
def test_every_way_answers_the_sample(triton: RunningTriton, model: str) -> None:
    assert ask_sample(triton.http_url, "translator", model).startswith("«Я люблю чай.» → ")


def test_business_logic_scripting_finds_the_same_words(
    client: triton_http.InferenceServerClient, alone: list[Translated]
) -> None:
    assert same(translations(client.infer("translator_bls", given(TEXTS[:6]))), alone[:6])


def test_pieces_join_to_the_whole_answer_and_come_one_by_one(
    triton: RunningTriton, alone: list[Translated]
) -> None:
    told = [list(streamed(triton, text)) for text in TEXTS[:6]]
    for pieces, (whole, tokens, _) in zip(told, alone, strict=False):
        assert "".join(piece["TRANSLATION"] for piece in pieces) == whole
        assert pieces[-1]["TOKENS"] == tokens
        ((begin, end, score),) = json.loads(pieces[-1]["SENTENCES"])
        assert (begin, end, score) == (0, len(whole), pytest.approx(pieces[-1]["SCORE"], abs=1e-4))
        assert not any("SENTENCES" in piece for piece in pieces[:-1])
    # Pieces that wait to be sent go together, of which a busy machine has some.
    assert max(map(len, told)) > 1


def test_no_word_is_lost_while_many_are_told_at_once(triton: RunningTriton, alone: list[Translated]) -> None:
    def joined(text: str) -> str:
        return "".join(piece["TRANSLATION"] for piece in streamed(triton, text))

    with ThreadPoolExecutor(8) as clients:
        assert list(clients.map(joined, TEXTS * 4)) == [whole for whole, _, _ in alone] * 4


def test_triton_s_own_generate_answers_where_there_is_one_piece(
    triton: RunningTriton, alone: list[Translated]
) -> None:
    with closing(http.client.HTTPConnection(triton.http_url, timeout=120)) as connection:
        connection.request("POST", "/v2/models/translator/generate", json.dumps({"TEXT": TEXTS[0]}))
        told = json.loads(connection.getresponse().read())
        assert (told["TRANSLATION"], told["TOKENS"]) == alone[0][:2]
        # Of a model that answers in pieces only generate_stream gives more than the first.
        connection.request(
            "POST", "/v2/models/translator_stream/generate", json.dumps({"TEXT": "Да.", "MAX_TOKENS": 1})
        )
        assert json.loads(connection.getresponse().read())["model_name"] == "translator_stream"


def test_several_sentences_are_put_together_with_what_was_between_them(
    client: triton_http.InferenceServerClient, alone: list[Translated]
) -> None:
    text = f"  {TEXTS[0]}\n\n{TEXTS[1]} "
    result = client.infer("translator", given([text]))
    ((found, tokens, _),) = translations(result)
    assert found == f"  {alone[0][0]}\n\n{alone[1][0]} "
    told = json.loads(result.as_numpy("SENTENCES").item())
    assert [found[begin:end] for begin, end, _ in told] == [alone[0][0], alone[1][0]]
    assert [score for _, _, score in told] == pytest.approx([alone[0][2], alone[1][2]], abs=1e-3)
    assert tokens == alone[0][1] + alone[1][1]


def test_limits_and_beams_are_heeded(client: triton_http.InferenceServerClient) -> None:
    ((_, few, _),) = translations(client.infer("translator", given([LONG], MAX_TOKENS=3)))
    assert few == 3
    ((_, _, greedy),) = translations(client.infer("translator", given([TEXTS[0]])))
    ((text, _, searched),) = translations(client.infer("translator", given([TEXTS[0]], BEAMS=4)))
    assert text
    assert searched >= greedy - 1e-3
    with pytest.raises(triton_http.InferenceServerException, match="BEAMS is 9; it has to be from 1 to 4"):
        client.infer("translator", given(["Да."], BEAMS=9))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the text is empty"),
        (" \n\t ", "the text is empty"),
        ("а" * (MOST_CHARACTERS + 1), r"has 2,001 characters; at most 2,000"),
        (b"\xff\xfe", "not UTF-8 from byte 0"),
        (b"\xed\xa0\x80", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("model", ["translator", "translator_bls"])
def test_a_text_that_cannot_be_translated_fails_its_own_request_with_a_reason(
    client: triton_http.InferenceServerClient,
    alone: list[Translated],
    model: str,
    text: str | bytes,
    why: str,
) -> None:
    beside = client.async_infer(model, given([TEXTS[2]]))
    with pytest.raises(triton_http.InferenceServerException, match=why):
        client.infer(model, given([TEXTS[0], text]))
    assert same(translations(beside.get_result()), [alone[2]])


def test_the_one_that_streams_refuses_with_the_same_words(triton: RunningTriton) -> None:
    (told,) = streamed(triton, "а" * (MOST_CHARACTERS + 1))
    assert "at most 2,000" in told["error"]


@pytest.mark.parametrize(
    "text", ["What is not Russian at all.", "😀 → 12", "א" * 50, "\u0301\u202e\ufeffда", "!"]
)
def test_what_is_hardly_russian_is_answered(client: triton_http.InferenceServerClient, text: str) -> None:
    ((_, tokens, score),) = translations(client.infer("translator", given([text])))
    assert tokens >= 0
    assert score <= 0


def test_the_longest_text_is_answered(client: triton_http.InferenceServerClient) -> None:
    text = ("Я люблю чай, а он любит кофе. " * 100)[:MOST_CHARACTERS]
    ((found, tokens, _),) = translations(client.infer("translator", given([text])))
    assert tokens > 100
    assert found


def test_who_is_out_of_time_is_told_so(client: triton_http.InferenceServerClient) -> None:
    with pytest.raises(triton_http.InferenceServerException, match="not translated in time"):
        client.infer("translator", given([LONG]), timeout=1000)
    with pytest.raises(triton_http.InferenceServerException, match="not translated in time"):
        client.infer("translator", given([LONG], BEAMS=4), timeout=1000)


def said(triton: RunningTriton, words: str) -> Callable[[], bool]:
    before = len(triton.log)
    return lambda: any(words in line for line in triton.log[before:])


def test_who_goes_away_ends_the_work_at_the_next_step(triton: RunningTriton) -> None:
    stopped = said(triton, "its client left")
    # Of clients of their own, which are served in turn.
    text = (LONG + " ") * 8
    several = [
        streamed(triton, text[:MOST_CHARACTERS], parameters={"client": f"client {number}"})
        for number in range(8)
    ]
    with ThreadPoolExecutor(len(several)) as pool:  # together, so that none is near its end
        list(pool.map(next, several))
    for pieces in several:
        pieces.close()  # and the connection with it
    wait_until(stopped, 30, "the model went on for nobody")
    assert list(streamed(triton, "Да."))


def test_the_processes_that_serve_texts_have_neither_torch_nor_transformers(triton: RunningTriton) -> None:
    folders = [
        f"{triton.repository / model}/" for model in ("translator", "translator_stream", "translator_bls")
    ]
    # Other tests' servers may start the same models at this moment.
    serving = [
        process
        for process in map(psutil.Process, stubs(triton.http_url))
        if any(folder in " ".join(process.cmdline()) for folder in folders)
    ]
    assert len(serving) >= 4  # one each for the whole and the pieces, two for business logic scripting
    for process in serving:
        opened = {Path(each.path).name for each in process.memory_maps()}
        assert any("sentencepiece" in name for name in opened)
        # The second has a library of its own for its tokenizers.
        assert not [name for name in opened if name.startswith(("libtorch", "libc10", "tokenizers"))]


# For the loop in the client, as the first users of this name run it.
def padded(words: Sequence[int]) -> np.ndarray:
    return np.array([[*words, *[1] * (50 - len(words))]], np.int32)


def steps(client: triton_http.InferenceServerClient, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    inputs = [triton_http.InferInput(name, [len(source), 50], "INT32") for name in ("source", "target")]
    inputs[0].set_data_from_numpy(source)
    inputs[1].set_data_from_numpy(target)
    # tritonclient returns read-only arrays.
    return client.infer("onnx-model", inputs).as_numpy("output").copy()


def test_a_loop_in_the_client_over_whole_steps_finds_the_same_words(
    client: triton_http.InferenceServerClient, alone: list[Translated]
) -> None:
    tokenizer = Tokenizer(package.read(MODELS / "translator" / "1" / package.FILE))
    place = min(range(len(TEXTS)), key=lambda place: alone[place][1])
    source, found = padded(tokenizer.encode(TEXTS[place])), list[int]()
    for length in range(min(alone[place][1] + 1, 49)):
        logits = steps(client, source, padded([tokenizer.pad, *found]))[0, length]
        logits[tokenizer.pad] = -np.inf
        found.append(int(logits.argmax()))
    assert tokenizer.decode(found) == alone[place][0]


def test_whole_steps_take_four_rows_and_no_more(client: triton_http.InferenceServerClient) -> None:
    rows = np.concatenate([padded([5 + row, 9, 0]) for row in range(4)])
    target = np.concatenate([padded([1])] * 4)
    together = steps(client, rows, target)
    assert together.shape[:2] == (4, 50)
    for row in range(4):
        alone = steps(client, rows[row : row + 1], target[:1])
        np.testing.assert_allclose(together[row : row + 1], alone, atol=1e-3)
    with pytest.raises(triton_http.InferenceServerException, match="4"):
        steps(client, np.concatenate([rows, rows[:1]]), np.concatenate([target, target[:1]]))


def test_more_than_may_wait_are_refused_and_the_others_answered(
    client: triton_http.InferenceServerClient,
) -> None:
    texts = ["Да. " * 80] * 16  # two such calls are more than may wait
    waiting = [client.async_infer("translator", given(texts)) for _ in range(12)]
    refused = [why for why in map(failure, waiting) if why]
    assert 0 < len(refused) < len(waiting)
    assert all("may: send the request again later" in why for why in refused)


def test_a_request_alone_may_bring_more_than_may_wait(client: triton_http.InferenceServerClient) -> None:
    texts = ["Да. " * 20] * 32
    found = translations(client.infer("translator", given(texts)))
    assert [each[0] for each in found] == [found[0][0]] * 32
    searched = translations(client.infer("translator", given(["Да."] * 20 + ["Нет."], BEAMS=2)))
    assert [each[0] for each in searched] == [searched[0][0]] * 20 + ["No."]


@pytest.mark.slow
def test_triton_s_metrics_tell_of_the_room_s_queue_and_of_its_tokens(
    client: triton_http.InferenceServerClient, triton: RunningTriton
) -> None:
    """Triton itself counts a request as answered once it is handed over."""

    def figures() -> Counter[str]:
        with urllib.request.urlopen(triton.options.metrics_url, timeout=10) as reply:
            text = reply.read().decode()
        found = re.findall(
            r'^generation_(\w+){model="translator",process="\d+",version="1"} (\S+)$', text, re.M
        )
        sums = Counter[str]()
        for name, value in found:  # of each process
            sums[name] += float(value)  # type: ignore[assignment]
        return sums

    wait_until(lambda: len(figures()) == 5, 10, "the room's figures are not there")
    time.sleep(2)  # what the tests before had translated is told as well: that takes a second
    before, highest = figures(), dict.fromkeys(("waiting", "at_work"), 0.0)
    pending = [client.async_infer("translator", given([f"{LONG} " * 7] * 16)) for _ in range(3)]

    def seen() -> bool:
        now = figures()
        highest.update({name: max(most, now[name]) for name, most in highest.items()})
        return min(highest.values()) > 0

    wait_until(seen, 30, "nothing was seen to wait and to be at work")
    answered = [translations(each.get_result()) for each in pending]
    tokens = sum(each[1] for texts in answered for each in texts)
    rows = 3 * 16 * 7
    # An answer's end is a token of the network's too, and none of the answer's.
    told = {"waiting": 0, "at_work": 0, "begun_total": rows, "tokens_total": tokens + rows}

    def grew() -> dict[str, float]:
        return {name: value - before[name] for name, value in figures().items()}

    wait_until(lambda: grew().items() >= told.items(), 30, f"{told} is not told")
    assert 0 < grew()["first_token_seconds_total"] / rows < 60


def failure(request: Any) -> str:
    try:
        request.get_result()
    except triton_http.InferenceServerException as exc:
        return str(exc)
    return ""
