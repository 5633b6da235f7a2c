"""Translators of others: what is a checkpoint, and what the gate says of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.cli import said
from support.small_translator import saved_translator
from torch import nn

from gourmet.contracts import THRESHOLD_PARAMETER
from gourmet.errors import GourmetError
from gourmet.evaluation.text_certainty import NEVER
from gourmet.evaluation.text_comparison import agreement
from gourmet.generation import package
from gourmet.repository.gate import Deployment
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.repository.versions import newest_version
from gourmet.systems.digits.network import DigitsNetwork
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.export import EXPORT, MAX_TOKENS, TranslatorExport
from gourmet.systems.translator.network import MARIAN, load
from gourmet.systems.translator.serving import DECODER, ENCODER


class Letters:
    """A vocabulary of one for each number."""

    start, end = 0, 26

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token % 26) for token in tokens)

    def settled(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return saved_translator(tmp_path / "checkpoint")


def opened(folder: Path, export: Any = EXPORT) -> Deployment:
    deployment: Deployment = export.open(MARIAN.find(str(folder)), None, lambda share, words="": None)
    return deployment


def changed(folder: Path, **config: Any) -> None:
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | config))


def test_a_checkpoint_as_transformers_saves_it_today_is_opened_and_its_answers_without_an_end_agree(
    checkpoint: Path, tmp_path: Path
) -> None:
    """It has no embed_positions; and transformers forces the end of an answer where ours is cut."""
    assert not [name for name in load_file(checkpoint / "model.safetensors") if "embed_positions" in name]
    target = opened(checkpoint, TranslatorExport(fp32=True)).targets["python"].files[0]
    file = tmp_path / "model.zip"
    assert target.write(file)["form"] == "ONNX in a package, fp32"
    words, _ = target.check(file)
    assert (words.measured, words.passed) == ("32 of 32 sentences", True)


def test_a_translator_has_a_threshold_only_when_data_is_given(checkpoint: Path, tmp_path: Path) -> None:
    assert opened(checkpoint).calibration == {}
    data = tmp_path / "pairs.tsv"
    texts = [text.decode() for text in SYSTEM.examples(9, 0)]
    pairs = [f"m\t{meaning}\t{text}" for text, meaning in zip(texts, "abcdefghi", strict=True)]
    data.write_text("\n".join(f"{split}\t{pair}" for split in ("dev", "test") for pair in pairs))
    result = EXPORT.open(MARIAN.find(str(checkpoint)), data, lambda share, words="": None)
    assert result.calibration == {THRESHOLD_PARAMETER: NEVER}
    assert result.facts["certainty"]["parts"].keys() == {"validation", "test"}
    assert result.facts["certainty"]["parts"]["test"]["sure"] == 0.0


def test_an_older_checkpoint_keeps_its_stored_positions(checkpoint: Path) -> None:
    own = load(MARIAN.find(str(checkpoint))).network.state_dict()
    positions = {name: weights + 1.0 for name, weights in own.items() if "embed_positions" in name}
    file = checkpoint / "model.safetensors"
    save_file(load_file(file) | positions, file)
    loaded = load(file).network.state_dict()
    torch.testing.assert_close({name: loaded[name] for name in positions}, positions)


@pytest.mark.parametrize(
    ("same", "texts", "passed"), [(31, 32, True), (30, 32, False), (495, 500, True), (494, 500, False)]
)
def test_one_sentence_in_a_few_or_one_percent_may_differ(same: int, texts: int, passed: bool) -> None:
    tokens = [[1, 2]] * same + [[1, 3]] * (texts - same)
    check, _ = agreement(Letters(), tokens, [[1, 2]] * texts, fp32=True, what="sentences", compared=2)
    assert (check.passed, check.measured) == (passed, f"{same} of {texts} sentences")


@pytest.mark.parametrize(("same", "passed"), [(19, True), (10, False)])
def test_eight_bits_may_choose_other_words_now_and_then(same: int, passed: bool) -> None:
    right = [[number, 1, 2, 3] for number in range(20)]
    results = [*right[:same], *([[25, 24, 23, 22]] * (20 - same))]
    check, _ = agreement(Letters(), results, right, fp32=False, what="sentences", compared=4)
    assert check.passed == passed
    assert ("--fp32" in check.allowed) != passed


def test_answers_of_the_longest_length_are_equal_up_to_the_end_that_is_forced() -> None:
    longest = list(range(MAX_TOKENS))

    def passes(tokens: list[int]) -> bool:
        compared = {"what": "sentences", "compared": MAX_TOKENS - 1, "fp32": True}
        return agreement(Letters(), [tokens], [longest[:-1]], **compared)[0].passed  # type: ignore[arg-type]

    assert passes(longest)
    assert not passes([*longest[:-2], 7])


def test_a_network_that_answers_nothing_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    tensors["final_logits_bias"][0, 0] = 1e4
    save_file(tensors, file)
    target = opened(checkpoint, TranslatorExport(fp32=True)).targets["python"].files[0]
    target.write(tmp_path / "model.zip")
    words, answers = target.check(tmp_path / "model.zip")
    assert words.passed
    assert (answers.measured, answers.passed) == ("0 of 32", False)


@pytest.mark.slow
def test_fp32_rounds_nothing_and_is_refused_where_formats_say_it(checkpoint: Path, tmp_path: Path) -> None:
    def types(export: Any) -> set[int]:
        opened(checkpoint, export).targets["python"].files[0].write(tmp_path / "model.zip")
        network = onnx.load_model_from_string(package.read_package(tmp_path / "model.zip")["decoder.onnx"])
        return {tensor.data_type for tensor in network.graph.initializer if len(tensor.dims) == 2}

    assert types(EXPORT) == {onnx.TensorProto.FLOAT, onnx.TensorProto.INT8}
    assert b"MatMulIntegerToFloat" in package.read_package(tmp_path / "model.zip")["decoder.onnx"]
    assert types(EXPORT.in_fp32()) == {onnx.TensorProto.FLOAT}  # type: ignore[attr-defined]
    assert "--fp32 does not apply to digits" in said("deploy", "digits", "--fp32", "--to", tmp_path, status=2)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_checkpoint_of_another_architecture_is_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    output = said(*("deploy", "translator", "--to", tmp_path / "models", "--checkpoint", tmp_path), status=1)
    reason = f"{tmp_path} holds {kind}: only translators of Marian's architecture are served"
    assert reason in " ".join(output.split())
    weights = tmp_path / "model.safetensors"
    network: nn.Module = DigitsNetwork()
    save_file(network.state_dict(), weights)
    with pytest.raises(GourmetError, match=f"holds {kind}: "):
        load(weights)


def test_a_checkpoint_with_a_vocabulary_for_each_language_is_refused(checkpoint: Path) -> None:
    changed(checkpoint, share_encoder_decoder_embeddings=False)
    with pytest.raises(GourmetError, match="has a vocabulary for each language"):
        opened(checkpoint)


def graph(file: bytes) -> Any:
    return onnx.load_model_from_string(file).graph


@pytest.mark.nightly
def test_the_graphs_of_marian_are_the_ones_that_are_shipped(tmp_path: Path) -> None:
    folder = saved_translator(tmp_path, layers=(4, 2), activation_function="swish")
    target = (
        EXPORT.open(MARIAN.find(str(folder)), None, lambda share, words="": None).targets["python"].files[0]
    )
    target.write(tmp_path / "model.zip")
    shipped = package.read_package(newest_version(DEFAULT_REPOSITORY / "translator") / package.FILE)
    made = package.read_package(tmp_path / "model.zip")
    assert made.keys() == shipped.keys()
    for name in (ENCODER, DECODER):
        ours, theirs = (
            [node.op_type for node in graph(files[name]).node if node.op_type not in ("Constant", "Identity")]
            for files in (made, shipped)
        )
        assert ours == theirs


def test_a_config_names_neither_code_nor_a_size_that_the_weights_do_not_have(tmp_path: Path) -> None:
    """transformers takes a kernel's name in the first for something to download and to run."""
    others = {
        **dict.fromkeys(("_attn_implementation", "attn_implementation"), "kernels-community/flash-attn2"),
        **dict.fromkeys(("num_hidden_layers", "hidden_size", "num_attention_heads"), 10**6),
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
        "dtype": "float16",
    }
    plain: Any = load(MARIAN.find(str(saved_translator(tmp_path / "plain")))).network
    changed(theirs := saved_translator(tmp_path / "theirs"), **others)
    network: Any = load(MARIAN.find(str(theirs))).network
    assert network.config._attn_implementation == "eager"
    assert network.config.to_dict() == plain.config.to_dict()
    assert all(map(torch.equal, network.parameters(), plain.parameters()))


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path) -> None:
    def refused(name: str, **config: Any) -> str:
        folder = saved_translator(tmp_path / name)
        changed(folder, **config)
        with pytest.raises(GourmetError) as error:
            load(MARIAN.find(str(folder)))
        return str(error.value)

    assert "activation_function 'snake', which must be one of relu" in refused(
        "a", activation_function="snake"
    )
    assert "max_position_embeddings 64, and answers" in refused("b", max_position_embeddings=64)
    folder = saved_translator(tmp_path / "c")
    (folder / "target.spm").unlink()
    with pytest.raises(GourmetError, match=r"lacks target\.spm, which belong beside model"):
        load(MARIAN.find(str(folder)))
