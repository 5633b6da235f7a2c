"""A translator or captioner that is worse than what is served is refused, and `--force` says what is lost."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from support import small_captioner
from support.no_stack import no_stack
from support.small_translator import saved_translator

from gourmet.cli import main
from gourmet.pictures.made_up import squares
from gourmet.systems.captioner.export import eager_answers
from gourmet.training.files import save_tensors

MODELS = Path(__file__).parents[2] / "triton" / "models"
__all__ = ["no_stack"]


def deploy(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["deploy", *map(str, arguments)])


def copied(target: Path, *models: str) -> Path:
    for model in models:
        shutil.copytree(MODELS / model, target / model)
    return target


@pytest.mark.promise("models: their mean chrF is compared")
@pytest.mark.slow
def test_a_translator_is_compared_with_the_served_one_on_sentences_held_out(tmp_path: Path) -> None:
    repository = copied(tmp_path / "models", "translator", "translator_stream")
    checkpoint = saved_translator(tmp_path / "checkpoint")
    words = ["translator", "--format", "python", "--checkpoint", checkpoint, "--fp32", "--to", repository]

    refused = deploy(*words)
    assert refused.exit_code == 1, refused.output
    assert "translator is not deployed, version 1 goes on serving" in refused.stderr
    line = next(line for line in refused.stdout.splitlines() if line.startswith("chrF"))
    assert re.fullmatch(r"chrF, mean of the sentences +32 +[4-9]\d\.\d +\d\.\d +\d+\.\d +WORSE", line)
    assert [path.name for path in (repository / "translator").glob("[0-9]*")] == ["1"]

    data = tmp_path / "pairs.tsv"
    rows = [f"{part}\tmade\tI like tea.\tЯ люблю чай.\n" for part in ("dev", "test", "test")]
    data.write_text("".join(rows))
    forced = deploy(*words, "--data", data, "--force")
    assert forced.exit_code == 0, forced.output
    assert "--force: translator is deployed and loses chrF, mean of the sentences 100.0 →" in forced.stdout

    # Its streaming model still has the old network, which it refers to.
    stream = deploy(*words[:2], "stream", *words[3:], "--json")
    assert stream.exit_code == 1, stream.output
    assert "translator_stream is not deployed" in stream.stderr

    again = deploy(*words)
    assert "has the same weights" in again.stdout


@pytest.mark.slow
def test_a_captioner_is_compared_on_captioned_photos_and_without_them_says_that_it_is_not(
    tmp_path: Path,
) -> None:
    repository = copied(tmp_path / "models", *(path.name for path in MODELS.glob("captioner*")))
    served = small_captioner.checkpoint(tmp_path / "served", "grid")
    words = ["captioner", "--fp32", "--to", repository, "--checkpoint"]
    done = deploy(*words, served.folder)
    assert done.exit_code == 0, done.output
    assert "accuracy was not compared: name photos and their captions with --data" in done.stdout

    # People say of these photos what the served network says.
    data, photos = tmp_path / "captions", squares(6, 1, served.network.side)
    (data / "splits").mkdir(parents=True)
    captions = eager_answers(served.network, photos)
    with zipfile.ZipFile(data / "photos.zip", "w") as archive:
        for number, square in enumerate(photos):
            file = io.BytesIO()
            Image.fromarray(square).save(file, "PNG")
            archive.writestr(f"{number}.jpg", file.getvalue())
    vocabulary = served.tokenizer
    lines = [
        f"{number}.jpg\t{vocabulary.decode(tokens) or 'a ball'}\n" for number, tokens in enumerate(captions)
    ]
    (data / "captions.tsv").write_text("".join(lines))
    for part in ("train", "dev", "test"):
        (data / "splits" / f"{part}.txt").write_text("".join(f"{number}.jpg\n" for number in range(6)))

    network = served.network
    with torch.no_grad():
        network.text_decoder.cls.predictions.bias[network.end] = 9.0  # captions of no word or two
    worse = shutil.copytree(served.folder, tmp_path / "worse")
    save_tensors(worse / "model.safetensors", network.state_dict(), {})
    refused = deploy(*words, worse, "--data", data, "--json")
    assert refused.exit_code == 1, refused.output
    assert "captioner_vision is not deployed, version 2 goes on serving" in refused.stderr
    assert re.search(r"CIDEr-D × 100 +6 +\d{3,4}\.\d +\d+\.\d +\d+\.\d +WORSE", refused.stderr)
    forced = deploy(*words, worse, "--data", data, "--format", "vision", "--force", "--json")
    assert forced.exit_code == 0, forced.output
    (row,) = json.loads(forced.stdout)[0]["compared"]["rows"]
    assert (row["examples"], row["verdict"]) == (6, "worse")
