"""The captioner: what is served of it says what transformers says; hostile checkpoints end early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import small_captioner

from gourmet.errors import GourmetError
from gourmet.export.checkpoints import Checkpoint
from gourmet.generation.engine import onnx_graph
from gourmet.generation.loop import Loop, Row
from gourmet.pictures.decode import Pixels
from gourmet.pictures.made_up import squares
from gourmet.systems.captioner.network import load
from gourmet.systems.captioner.serving import CaptionerNetwork
from gourmet.systems.captioner.tokenizer import VOCABULARY, WordPieces, learn, settings_of

pytestmark = pytest.mark.unit

PROMPT = "a photograph of"
MOST = 20


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return small_captioner.checkpoint(tmp_path_factory.mktemp("grid"), "grid")


@pytest.fixture(scope="module")
def served(opened: Checkpoint) -> CaptionerNetwork:
    return CaptionerNetwork.open(small_captioner.files(opened), 1)


@pytest.fixture(scope="module")
def pictures(opened: Checkpoint) -> Pixels:
    return np.asarray(squares(6, 1, opened.network.side))


def eager(opened: Checkpoint, pictures: Pixels, prompt: list[int], **options: Any) -> list[list[int]]:
    network = opened.network
    with torch.inference_mode():
        states = network.states(network.normalised(torch.from_numpy(pictures)))
    rows = network.generate(states, prompt, MOST, **options).tolist()
    results = [row[1 + len(prompt) :] for row in rows]
    return [row[: row.index(network.end)] if network.end in row else row for row in results]


@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_rows_that_join_and_leave_get_the_tokens_of_transformers(
    opened: Checkpoint, served: CaptionerNetwork, pictures: Pixels, prompt: str
) -> None:
    forced = opened.tokenizer.encode(prompt)
    rows = [Row(pixels, MOST, prefix=forced) for pixels in pictures]
    Loop(served.engine, served.vocabulary, 4).complete(rows)
    right = eager(opened, pictures, forced)
    assert [row.tokens for row in rows] == right
    assert len({tuple(row) for row in right}) > 1


@pytest.mark.nightly
def test_a_blip_with_577_places_answers_as_its_own_class(tmp_path: Path) -> None:
    opened = small_captioner.checkpoint(tmp_path, "blip")
    pictures = np.asarray(squares(3, 2, 384))
    files = small_captioner.files(opened)
    memory, hidden = onnx_graph(files["vision.onnx"], 1)(["memory", "hidden"], {"pixels": pictures})
    assert memory.shape == (3, 2, 2, 4, 577, 8)
    assert hidden.shape == (3, 577, 48)
    from transformers.models import blip  # only now that the network made torchvision fit to be imported

    shape = blip.BlipConfig(**json.loads((tmp_path / "config.json").read_text()))
    public = blip.BlipForConditionalGeneration(shape).eval()
    public.load_state_dict(opened.network.state_dict())
    prompt = opened.tokenizer.encode(PROMPT)
    prompts = torch.tensor([[opened.network.start, *prompt, opened.network.end]] * 3)
    answers = public.generate(
        pixel_values=opened.network.normalised(torch.from_numpy(pictures)),
        input_ids=prompts,
        max_new_tokens=MOST,
        suppress_tokens=opened.network.never,
    ).tolist()
    results = [row[1 + len(prompt) :] for row in answers]
    end = opened.network.end
    right = [row[: row.index(end)] if end in row else row for row in results]
    rows = [Row(pixels, MOST, prefix=prompt) for pixels in pictures]
    served = CaptionerNetwork.open(files, 1)
    Loop(served.engine, served.vocabulary, 4).complete(rows)
    assert [row.tokens for row in rows] == eager(opened, pictures, prompt) == right


def test_special_tokens_are_never_an_answer(opened: Checkpoint, pictures: Pixels) -> None:
    tokenizer, network = opened.tokenizer, opened.network
    signs = [tokenizer.pad, tokenizer.start, tokenizer.unknown]
    with torch.no_grad():
        bias = network.text_decoder.cls.predictions.bias
        before = bias.clone()
        bias[signs] += 100.0
    try:
        served = CaptionerNetwork.open(small_captioner.files(opened), 1)
        rows = [Row(pixels, MOST) for pixels in pictures]
        Loop(served.engine, served.vocabulary, 8).complete(rows)
        assert not {token for row in rows for token in row.tokens} & set(signs)
        assert [row.tokens for row in rows] == eager(opened, pictures, [])
    finally:
        with torch.no_grad():
            bias.copy_(before)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("text_config", "hidden_size", -1),
        ("text_config", "bos_token_id", 1 << 20),
        ("vision_config", "patch_size", 0),
        ("vision_config", "hidden_size", "many"),
        ("vision_config", "model_type", "a great model"),
    ],
)
def test_a_config_that_the_weights_do_not_bear_out_is_refused_in_a_sentence(
    part: str, name: str, value: object, tmp_path: Path
) -> None:
    small_captioner.checkpoint(tmp_path, "blip")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config[part][name] = value
    path.write_text(json.dumps(config))
    with pytest.raises(GourmetError, match=str(tmp_path)):
        load(tmp_path / "model.safetensors")


def test_other_architectures_and_missing_files_are_refused(tmp_path: Path) -> None:
    small_captioner.checkpoint(tmp_path, "blip")
    (tmp_path / VOCABULARY).unlink()
    with pytest.raises(GourmetError, match=VOCABULARY):
        load(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "git"}))
    with pytest.raises(GourmetError, match="only captioners of BLIP's architecture"):
        load(tmp_path / "model.safetensors")


def test_the_text_of_fewer_tokens_is_a_prefix_of_the_text_of_more() -> None:
    files = {VOCABULARY: learn(["a man's t-shirt , the dogs' bowl ."] * 2, 2), **settings_of(8, 1, 2, 3)}
    tokenizer = WordPieces(files)
    pieces = tokenizer.encode("The man's t-shirt, the dogs' bowl.")
    assert tokenizer.decode(pieces) == "the man's t-shirt, the dogs' bowl."
    lines = [tokenizer.decode(pieces[:count]) for count in range(len(pieces) + 1)]
    assert all(lines[-1].startswith(line) for line in lines)
    with pytest.raises(ValueError, match="'xyz' is not a word"):
        tokenizer.encode("a xyz")
