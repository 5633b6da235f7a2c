"""Another pair of languages is a system that is data, like our translator; and what is none is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.cli import gourmet
from support.fake_classifier import FakeClassifier
from support.small_translator import GERMAN, saved_translator
from support.stopping import everything, files

from app import create_app
from app.web.settings import Settings
from gourmet.contracts import GeneratedText, ModelInfo, TensorSpec
from gourmet.errors import GourmetError
from gourmet.repository import deploy as deploying
from gourmet.repository.models import read_config
from gourmet.systems import registry
from gourmet.systems.parts import SystemParts
from gourmet.systems.translator.contract import SYSTEM, Translator
from gourmet.systems.translator.data import SentenceData

DESCRIBED = """like = "translator"
title = "German to English"
languages = ["de", "en"]
examples = ["Ich mag Tee."]
"""
TAKES = ModelInfo("m", (TensorSpec("TEXT", "BYTES", (-1, 1)),), (), max_batch_size=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_translator(tmp_path_factory.mktemp("theirs"), [*GERMAN] * 5, 70)


def described(folder: Path, text: str = DESCRIBED) -> Translator:
    (folder / "german").mkdir(exist_ok=True)
    (folder / "german" / "system.toml").write_text(text)
    registry.load.cache_clear()
    result = registry.load("german")
    assert isinstance(result, Translator)
    return result


def new(own: Path, checkpoint: Path, *more: str, name: str = "german") -> tuple[int, str]:
    sentences = own / "sentences.txt"
    sentences.write_text("".join(f"{text}\tsomething\n" for text in GERMAN))
    words = ["new", name, "--like", "translator", "--checkpoint", checkpoint, "--data", sentences]
    done = gourmet(*words, *(more or ("--languages", "de,en", "--fp32")))
    return done.exit_code, " ".join(done.output.split())


def test_checks_for_russian_do_not_apply_to_another_pair(systems_folder: Path) -> None:
    german = described(systems_folder)
    names = (german.model_variable, german.default_model, german.streaming_model, german.metrics_prefix)
    assert names == ("GERMAN_MODEL_NAME", "german", "german_stream", "german")
    assert german.sample() == b"Ich mag Tee."

    def warned(system: Translator, text: str, translation: str) -> str:
        return system.with_warning(text.encode(), GeneratedText(translation)).warning

    assert warned(german, "Ich mag Tee mit Anna.", "I like tea.") == ""
    doubt = warned(german, "Er wurde 1869 geboren.", "He was born.")
    assert doubt == "not in the translation as written: 1869"
    assert "does not look Russian" in warned(SYSTEM, "Ich mag Tee.", "I like tea.")
    capitals = "ВНИМАНИЕ! ДВЕРЬ ОТКРЫТА.".encode()
    assert german.request_inputs(capitals, TAKES)["TEXT"].item() == capitals
    assert SYSTEM.request_inputs(capitals, TAKES)["TEXT"].item() != capitals


def test_the_app_has_a_page_and_a_choice_for_each_pair(systems_folder: Path) -> None:
    described(systems_folder)
    browser = create_app(Settings(triton_url="127.0.0.1:9"), FakeClassifier()).test_client()
    german, ours = (browser.get(path).text for path in ("/translate/german", "/translate"))
    for page, language, action in ((german, "de", "/translate/german"), (ours, "ru", "/translate")):
        assert f'<textarea id="text" name="text" lang="{language}"' in page
        assert f'action="{action}"' in page
        assert '<a href="/translate/german"' in page
    assert "A small network for demonstration" not in german
    assert '"warnings": {}' in german
    assert browser.get("/translate/food11").status_code == 404
    assert browser.post("/translate/nobody", data={"text": "Ja."}).status_code == 404
    refused = browser.post("/api/v1/translate", json={"text": "Ja.", "system": "food11"})
    message = refused.json["error"]["message"]
    assert (refused.status_code, message) == (400, "system is 'food11'; allowed: translator, german")


@pytest.mark.parametrize(
    ("line", "instead", "reason"),
    [
        ('like = "translator"', 'like = "../translator"', "is like '../translator'"),
        ('like = "translator"', "like = 7", "7 is not a text"),
        ('languages = ["de", "en"]', "", "lacks 'languages'"),
        ('languages = ["de", "en"]', 'languages = ["de"]', "not enough values"),
        ('"de", "en"', '"de", "\\" onload="', "is not a language as HTML names them"),
        ('examples = ["Ich mag Tee."]', "examples = []", "no sentences as examples"),
        ('examples = ["Ich mag Tee."]', 'examples = [" "]', "the text is empty"),
        ('title = "German to English"', "title = 7", "does not describe a system"),
    ],
)
def test_a_description_that_says_no_pair_is_refused_in_a_sentence(
    line: str, instead: str, reason: str, systems_folder: Path
) -> None:
    with pytest.raises(GourmetError, match=r"system\.toml") as refused:
        described(systems_folder, DESCRIBED.replace(line, instead))
    assert reason in str(refused.value)
    assert reason in registry.broken()["german"]


def test_a_pair_has_the_parts_of_the_translator_with_its_own_names(own: Path, checkpoint: Path) -> None:
    shipped = {path: path.read_bytes() for path in registry.folder_of("translator").rglob("*.toml")}
    code, output = new(own, checkpoint)
    assert code == 0, output
    assert {name for name in everything(own / "models") if "/" not in name} == {"german", "german_stream"}
    for name in ("german", "german_stream"):
        config = read_config(own / "models" / name)
        assert (config.name, config.parameters["system"].string_value) == (name, "german")
        assert config.model_transaction_policy.decoupled == (name == "german_stream")
        assert (own / "models" / name / "1" / "model.py").is_file()
    parts = SystemParts("german")
    assert tuple(parts.export.formats) == ("python", "stream")
    assert parts.text_data == SentenceData(is_russian=False)
    with pytest.raises(GourmetError, match="is only data, so this does not apply"):
        _ = parts.training
    pairs = own / "pairs.tsv"
    pairs.write_text("".join(f"{text} {n}\tAn answer {n}\n" for n, text in enumerate(GERMAN * 20)))
    assert parts.text_data.references(pairs, "train", 1)[0].text.startswith("Ich mag Tee.")
    assert shipped == {path: path.read_bytes() for path in shipped}


@pytest.mark.parametrize(
    ("more", "name", "complaint"),
    [
        (("--languages", "de"), "german", "add --languages, such as de,en"),
        (("--languages", "de,English"), "german", "'English' is not a language"),
        (("--languages", "de,en", "--labels", "a,b"), "german", "--checkpoint brings a translator"),
        (("--languages", "de,en", "--like", "digits"), "german", "a checkpoint can be like translator"),
        (("--languages", "de,en"), "captioner_stream", "captioner_stream is there already"),
        (("--languages", "de,en"), "food_classifier", "food_classifier is there already"),
    ],
)
def test_an_invalid_pair_is_refused_and_leaves_no_files(
    more: tuple[str, ...], name: str, complaint: str, own: Path, checkpoint: Path
) -> None:
    code, output = new(own, checkpoint, *more, name=name)
    assert (code != 0, complaint in output) == (True, True), output
    assert files(own) == {"sentences.txt"}


def test_a_checkpoint_that_fails_the_gate_leaves_no_files(
    own: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "bart").mkdir()
    shutil.copy(checkpoint / "model.safetensors", own / "bart")
    (own / "bart" / "config.json").write_text('{"model_type": "bart"}')
    left = everything(own / "bart")
    code, output = new(own, own / "bart", "--languages", "de,en")
    assert (code, "holds bart: only translators of Marian's" in output) == (1, True), output
    written = deploying._written

    def second_fails(file: deploying.ModelFile, folder: Path) -> object:
        if folder.parent.name == "german_stream":
            raise GourmetError("the second model is not made")
        return written(file, folder)

    monkeypatch.setattr(deploying, "_written", second_fails)
    code, output = new(own, checkpoint)
    assert (code, "the second model is not made" in output) == (1, True), output
    assert everything(own / "bart") == left
    assert {path.name for path in own.iterdir()} - {"bart", "sentences.txt"} <= {"systems", "models"}
    assert not everything(own / "systems") | everything(own / "models")
