"""The captioner: what is served of it says what transformers says, and it learns from a dozen pictures."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import small_captioner

from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation.calibration import write_report
from gourmet.evaluation.system_parts import BadData, EmptyPart, EvaluateOptions
from gourmet.export.checkpoints import Checkpoint
from gourmet.generation.engine import onnx_graph
from gourmet.generation.loop import Loop, Row
from gourmet.pictures.decode import Pixels
from gourmet.pictures.made_up import squares
from gourmet.systems.captioner import data as captioned
from gourmet.systems.captioner.data import Cider, scored_words
from gourmet.systems.captioner.evaluate import EVALUATION
from gourmet.systems.captioner.export import EXPORT
from gourmet.systems.captioner.network import GridVision, load
from gourmet.systems.captioner.serving import CaptionerNetwork
from gourmet.systems.captioner.tokenizer import VOCABULARY, WordPieces, learn, settings_of
from gourmet.systems.captioner.train import CaptionerTask, CaptionerTraining
from gourmet.training.files import load_tensors, put_tensors, save_tensors
from gourmet.training.loop import BEST, fit
from gourmet.training.task import TrainOptions

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


# Training
WORDS = ("dog runs through snow", "boy jumps into a pool", "man rides a bike", "girl on a swing")
PARTS = {"train": range(12), "dev": range(12, 16), "test": range(16, 20)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for number, square in enumerate(squares(20, 1, 40)):
            file = io.BytesIO()
            Image.fromarray(square).save(file, "PNG")
            archive.writestr(f"{number}.jpg", file.getvalue())
    lines = [
        f"{number}.jpg\t{start} {WORDS[number % 4]} {end}\n"
        for number in range(20)
        for start, end in (("A", "."), ("The small", "outside ."))
    ]
    (folder / "captions.tsv").write_text("".join(lines))
    (folder / "splits").mkdir()
    for part, numbers in PARTS.items():
        (folder / "splits" / f"{part}.txt").write_text("".join(f"{number}.jpg\n" for number in numbers))
    return folder


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> CaptionerTraining:
    """Return a training that starts from a ResNet50 with an eighth of the channels."""
    folder, torchvisions = tmp_path_factory.mktemp("vision"), dict[str, torch.Tensor]()
    torch.manual_seed(0)
    for name, tensor in GridVision(8, 0.0, channels=8).state_dict().items():
        layer = name.rpartition(".")[0]
        if name.endswith(".weight") and tensor.ndim == 4:
            norm = layer.replace("conv", "bn") if "downsample" not in layer else f"{layer}.1"
            conv = layer if "downsample" not in layer else f"{layer}.0"
            width = len(tensor)
            torchvisions |= {
                f"{conv}.weight": tensor,
                f"{norm}.weight": torch.full((width,), 1.5),
                f"{norm}.bias": torch.zeros(width),
                f"{norm}.running_mean": torch.zeros(width),
                f"{norm}.running_var": torch.ones(width),
            }
    save_tensors(folder / "resnet50.safetensors", torchvisions, {})
    small = ["width=16", "heads=2", "layers=1", "feed_forward=32", "batch=4", "least=2", "dropout=0.0"]
    return CaptionerTraining().configured(
        [f"vision={folder / 'resnet50.safetensors'}", f"seen={folder / 'seen'}", *small]
    )


def task_of(training: CaptionerTraining, data: Path) -> CaptionerTask:
    return training.prepare(data, TrainOptions(), lambda share, words="": None)


def trained(task: CaptionerTask, training: CaptionerTraining, out: Path) -> list[dict[str, Any]]:
    for name, content in task.files.items():
        out.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
    return fit(task, training.recipe(TrainOptions(epochs=3)), out)


@pytest.fixture(scope="module")
def run(data: Path, training: CaptionerTraining, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    log = trained(task_of(training, data), training, out)
    assert log[-1]["loss"] < log[0]["loss"]
    assert {"cider", "distinct"} < log[-1].keys()
    return out


@pytest.mark.nightly
def test_reward_training_starts_from_the_earlier_weights(
    data: Path, training: CaptionerTraining, run: Path, tmp_path: Path
) -> None:
    rewarded = replace(training, config=replace(training.config, drawn=3))
    task = task_of(rewarded, data)
    put_tensors(task.network, load_tensors(run / BEST)[0], run / BEST)
    before = task.network.state_dict()["vision_model.project.weight"].clone()
    log = trained(task, rewarded, tmp_path)
    assert all(np.isfinite(epoch["loss"]) for epoch in log)
    assert not torch.equal(before, task.network.state_dict()["vision_model.project.weight"])


@contextlib.contextmanager
def progress_bar(name: str) -> Iterator[Any]:
    yield lambda share, words="": None


@pytest.mark.slow
def test_evaluation_uses_the_served_loop_and_deploys_the_threshold(data: Path, run: Path) -> None:
    report, measured = EVALUATION.evaluate(EvaluateOptions(run / BEST, data), progress_bar)
    scores = report.measures["scores"]
    assert scores.keys() == {"validation", "validation, 3 beams", "test", "test, 3 beams"}
    assert scores["test"]["photos"] == 4
    page = write_report(report, run / BEST, measured)
    assert "16.jpg" in page.read_text()
    assert "no punctuation" in report.text()
    deployment = EXPORT.open(run / BEST, data, lambda share, words="": None)
    assert deployment.calibration == {"threshold": report.measures["threshold"]}
    assert list(deployment.targets) == ["vision", "decoder", "python", "stream"]


def test_cider_equals_pycocoevalcap_s() -> None:
    """Whose Cider (1.2 of PyPI) found these numbers of the same words."""
    people = [
        ["a black dog runs through the snow", "two dogs play in the snow", "a dog is running in snow"],
        ["a boy in a red shirt jumps into a pool", "a child jumps into the water"],
        [
            "a man's bike stands beside a brick wall",
            "a bicycle leans on a wall",
            "an old bike by a red-brick wall",
        ],
    ]
    lines = ["A dog runs in the snow.", "a boy jumps into the pool", "a bicycle stands beside a wall"]
    scores = [Cider(people).score(photo, text) for photo, text in enumerate(lines)]
    assert scores == pytest.approx([2.4045661026986402, 2.551209196091642, 1.7062363851528577])
    assert scored_words(people[2][0])[:3] == ["a", "man", "'s"]
    assert Cider(people).score(0, "") == 0.0


def test_unusable_training_data_is_reported(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vision=FILE"):
        task_of(CaptionerTraining(), data)
    with pytest.raises(UsageError, match="there are vision="):
        CaptionerTraining().configured(["depth=3"])
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "photos.zip").write_bytes((data / "photos.zip").read_bytes())
    (broken / "captions.tsv").write_text("1.jpg without a tab\n")
    with pytest.raises(BadData, match=r"photos\.zip"):
        captioned.photos(tmp_path, "train")
    with pytest.raises(BadData, match="line 1 is not a name and a caption"):
        captioned.photos(broken, "train")
    (broken / "captions.tsv").write_text("99.jpg\ta dog\n")
    (broken / "splits").mkdir()
    (broken / "splits" / "train.txt").write_text("99.jpg\n")
    with pytest.raises(EmptyPart, match="no photo with a caption"):
        captioned.photos(broken, "train")
    with pytest.raises(GourmetError, match="other"):
        captioned.photos(data, "other")
