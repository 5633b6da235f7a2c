"""M2M100 and T5 behind the same loop: transformers' own words, and a reason where something does not fit."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from support.brought_translators import SAVED, saved_m2m100, saved_t5
from support.small_translator import saved_translator

from gourmet.cli import main
from gourmet.errors import GourmetError
from gourmet.repository import DEFAULT, versions
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.loop import Row
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.export import EXPORT, TranslatorExport
from gourmet.systems.translator.network import find, load
from gourmet.systems.translator.serving import DECODER, ENCODER, TranslatorNetwork
from gourmet.tasks.generation import served
from gourmet.training.torchvision_import import torchvision

# Of what sort, and of what else their config.json speaks.
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "M2M100": ("M2M100", {}),
    "M2M100, GELU": ("M2M100", {"activation_function": "gelu", "scale_embedding": False}),
    "T5": ("T5", {}),
    "T5 1.1": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}
TEXTS = [text.decode() for text in SYSTEM.examples(12, seed=0)]
TOKENS = 40


@pytest.fixture(params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind, config = KINDS[request.param]
    return SAVED[kind](tmp_path / "checkpoint", **config)


def opened(folder: Path, *, fp32: bool = True) -> TranslatorNetwork:
    """What is served of it, from its package."""
    file = folder / "model.zip"
    export = TranslatorExport(fp32)
    target = export.open(find(str(folder)), None, lambda share, words="": None).targets["python"]
    target.build(file)
    assert not fp32 or all(check.passed for check in target.verify(file))
    return TranslatorNetwork.open(package.read(file), 1)


def answers(network: TranslatorNetwork, texts: Sequence[str], at_once: int) -> list[list[int]]:
    words = network.vocabulary
    rows = [Row(words.encode(text), TOKENS, prefix=words.first) for text in texts]
    return served.served_answers(network.engine, words, rows, at_once)


def transformers_own(folder: Path, source: Sequence[int], pad: int, first: Sequence[int]) -> list[int]:
    """What a program without any of our code is answered."""
    torchvision()
    from transformers import AutoModelForSeq2SeqLM

    network = AutoModelForSeq2SeqLM.from_pretrained(folder)
    found = network.generate(
        input_ids=torch.tensor([source]),
        num_beams=1,
        do_sample=False,
        max_new_tokens=TOKENS + len(first),
        bad_words_ids=[[pad]],
        forced_bos_token_id=first[0] if first else None,
    )[0].tolist()[1:]
    assert found[: len(first)] == first
    end = network.config.eos_token_id
    return found[len(first) : found.index(end)] if end in found else found[len(first) :]


def test_sentences_of_any_age_in_a_step_have_the_words_that_transformers_finds_for_each_alone(
    checkpoint: Path,
) -> None:
    """Three at a time: one joins whenever one is finished, so that a step has rows of all ages."""
    network = opened(checkpoint)
    words = network.vocabulary
    found = answers(network, TEXTS, 3)
    own = [transformers_own(checkpoint, words.encode(text), words.pad, words.first) for text in TEXTS]
    assert found == own
    assert len({tuple(each) for each in found}) > len(TEXTS) / 2


def test_in_eight_bits_a_sentence_has_the_same_words_alone_as_among_others(checkpoint: Path) -> None:
    network = opened(checkpoint, fp32=False)
    products = Counter(node.op_type for node in graph(package.read(checkpoint / "model.zip")[DECODER]).node)
    assert products["MatMulIntegerToFloat"] > 10
    assert not products["MatMul"] + products["Gemm"]
    assert answers(network, TEXTS, 16) == answers(network, TEXTS, 1)


def graph(file: bytes) -> Any:
    return onnx.load_model_from_string(file).graph


def test_the_graphs_of_marian_are_the_ones_that_are_shipped(tmp_path: Path) -> None:
    """Constants apart, of which equal ones are one."""
    folder = saved_translator(tmp_path, layers=(4, 2), activation_function="swish")
    target = EXPORT.open(find(str(folder)), None, lambda share, words="": None).targets["python"]
    target.build(tmp_path / "model.zip")
    shipped = package.read(DEFAULT / "translator" / str(versions(DEFAULT / "translator")[-1]) / package.FILE)
    made = package.read(tmp_path / "model.zip")
    assert made.keys() == shipped.keys()
    for name in (ENCODER, DECODER):
        ours, theirs = (
            [node.op_type for node in graph(files[name]).node if node.op_type not in ("Constant", "Identity")]
            for files in (made, shipped)
        )
        assert ours == theirs


def test_m2m100_reads_and_writes_texts_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    folder = saved_m2m100(tmp_path)
    from transformers import M2M100Tokenizer

    own = M2M100Tokenizer(
        str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), src_lang="ru", tgt_lang="en"
    )
    words = load(find(str(folder))).tokenizer
    assert (words.start, words.first) == (own.eos_token_id, [own.get_lang_id("en")])
    for text in (*TEXTS, "Чай, 12 чашек!", "日本"):
        ids = own(text)["input_ids"]
        assert words.encode(text) == ids
        if words.unknown not in ids:  # of which its own says nothing
            assert words.decode([*words.first, *ids]) == own.decode(ids[1:], skip_special_tokens=True)


def test_t5_reads_what_is_to_be_done_before_each_text(tmp_path: Path) -> None:
    tasks = {"translation_ru_to_en": {"prefix": "Перевод: "}, "translation_en_to_de": {"prefix": "no"}}
    folder = saved_t5(tmp_path, task_specific_params=tasks)
    told = load(find(str(folder))).tokenizer
    plain = load(find(str(saved_t5(tmp_path / "plain", prefix="")))).tokenizer
    assert told.encode("Чай.") == plain.encode("Перевод: Чай.") != plain.encode("Чай.")
    assert (plain.start, plain.first) == (plain.pad, [])


def test_a_search_begins_with_the_language_too(tmp_path: Path) -> None:
    network = opened(saved_m2m100(tmp_path))
    words = network.vocabulary
    (part,) = network.parts("Я люблю чай.", 10, beams=2)
    assert isinstance(part, Row)
    (row,) = network.parts("Я люблю чай.", 10)
    assert isinstance(row, Row)
    assert part.prefix == row.prefix == words.first
    served.served_answers(network.engine, words, [part, row], 4)
    assert part.score / (len(part.tokens) + 1) >= row.score / (len(row.tokens) + 1) - 1e-4


@pytest.mark.parametrize("kind", SAVED)
def test_a_config_names_neither_code_nor_a_size_that_the_weights_do_not_have(
    kind: str, tmp_path: Path
) -> None:
    """transformers takes a kernel's name in the first for something to download and to run."""
    others = {
        "_attn_implementation": "kernels-community/flash-attn2",
        "_attn_implementation_internal": "kernels-community/flash-attn2",
        "attn_implementation": "kernels-community/flash-attn2",
        "num_hidden_layers": 10**6,
        "hidden_size": 10**6,
        "num_attention_heads": 10**6,
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
        "dtype": "float16",
    }
    plain = load(find(str(SAVED[kind](tmp_path / "plain")))).network
    network: Any = load(find(str(changed(SAVED[kind](tmp_path / "theirs"), **others)))).network
    assert network.config._attn_implementation == "eager"
    assert network.config.to_dict() == plain.config.to_dict()
    assert all(map(torch.equal, network.parameters(), plain.parameters()))


def test_weights_of_many_small_tensors_build_no_network_of_as_many_layers(tmp_path: Path) -> None:
    folder = saved_t5(tmp_path)
    many = {f"t{number}": torch.zeros(1) for number in range(2_000)}
    save_file({**load_file(folder / "model.safetensors"), **many}, folder / "model.safetensors")
    began = time.process_time()
    with pytest.raises(GourmetError, match="num_layers 2000, and the weights allow 128"):
        load(find(str(changed(folder, num_layers=2_000))))
    assert time.process_time() - began < 2


@pytest.mark.parametrize("kind", ["characters", "pieces"])
def test_what_all_texts_begin_with_leaves_room_for_a_sentence(kind: str, tmp_path: Path) -> None:
    prefix = {"characters": "перевод " * 200_000, "pieces": "Чай. " * 41}[kind]
    began = time.process_time()
    with pytest.raises(GourmetError, match="begin with more than 40 pieces"):
        load(find(str(saved_t5(tmp_path, prefix=prefix))))
    assert time.process_time() - began < 2


def changed(folder: Path, **config: Any) -> Path:
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | config))
    return folder


def without(folder: Path, tensor: str) -> Path:
    file = folder / "model.safetensors"
    save_file({name: each for name, each in load_file(file).items() if name != tensor}, file)
    return folder


def forced(folder: Path) -> Path:
    """German is the seventeenth of its languages."""
    return changed(folder, forced_bos_token_id=len(json.loads((folder / "vocab.json").read_text())) + 16)


def renamed(folder: Path, name: str, other: str) -> Path:
    (folder / name).rename(folder / other)
    return folder


def test_what_does_not_fit_is_refused_with_the_name_of_what_is_missing(tmp_path: Path) -> None:
    def m2m100(name: str, **config: Any) -> Path:
        return saved_m2m100(tmp_path / name, **config)

    def t5(name: str) -> Path:
        return saved_t5(tmp_path / name)

    lost = "decoder.block.1.layer.0.SelfAttention.q.weight"
    tasks = {"translation_en_to_de": {"prefix": "translate English to German: "}}
    refused = {
        "its activation_function is 'snake', and there are relu,": changed(
            m2m100("a"), activation_function="snake"
        ),
        "its feed_forward_proj is 'gated-snake', and there are": changed(
            t5("b"), feed_forward_proj="gated-snake"
        ),
        "lacks sentencepiece.bpe.model: .* tokenizer.json is not read": renamed(
            m2m100("c"), "sentencepiece.bpe.model", "tokenizer.json"
        ),
        "lacks spiece.model": renamed(t5("d"), "spiece.model", "spiece"),
        f"no {lost}": without(t5("e"), lost),
        "has translation_en_to_de and not translation_ru_to_en": changed(t5("f"), task_specific_params=tasks),
        "its answers begin with __de__, and the system's with __en__": forced(m2m100("g")),
        "max_position_embeddings 64, and answers have up to 257": m2m100("h", max_position_embeddings=64),
        "pad_token_id 5, and the vocabulary has <pad> at 0": changed(t5("i"), pad_token_id=5),
        "its vocabulary goes up to 119, and config.json says vocab_size 100": changed(
            t5("j"), vocab_size=100
        ),
    }
    for reason, folder in refused.items():
        with pytest.raises(GourmetError, match=reason):
            load(find(str(folder)))
    with pytest.raises(GourmetError, match="has no language __la__: it has __af__"):
        load(find(str(m2m100("k"))), ("la", "en"))
    words = ["deploy", "translator", "--to", str(tmp_path / "models"), "--format", "whole", "--checkpoint"]
    done = CliRunner().invoke(main, [*words, str(t5("l"))])
    assert done.exit_code == 2
    assert "--format whole cannot be made of" in done.output
