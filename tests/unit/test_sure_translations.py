"""Sure translations of the shipped network, by score and by warnings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.cli import gourmet, said

from gourmet.contracts import THRESHOLD_PARAMETER, GeneratedText, ModelInfo
from gourmet.evaluation.text_comparison import whole_answers
from gourmet.generation import package
from gourmet.generation.answers import GrowingAnswer
from gourmet.generation.contract import BEAMS
from gourmet.generation.loop import Loop
from gourmet.repository.config_file import ConfigFile
from gourmet.repository.models import DEFAULT_REPOSITORY, read_config
from gourmet.served import manifest
from gourmet.served.files import own_models
from gourmet.served.instances import parameter
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.serving import TranslatorNetwork
from gourmet.triton_client.model_config import as_json

TRANSLATOR = DEFAULT_REPOSITORY / "translator"
ANSWERING = ("translator", "translator_stream")
SEVERAL = "  Я люблю чай.\n\nГиппопотам съел фикус. 12 Где ближайшая аптека? 😀"


@pytest.fixture(scope="module")
def network() -> TranslatorNetwork:
    return TranslatorNetwork.open(package.read_package(TRANSLATOR / "1" / package.FILE), 1)


@pytest.fixture(scope="module")
def model() -> ModelInfo:
    config = as_json(read_config(TRANSLATOR))
    return ModelInfo("translator", (), (), {THRESHOLD_PARAMETER: parameter(config, THRESHOLD_PARAMETER)})


def answered(network: TranslatorNetwork, text: str) -> GeneratedText:
    (translation,) = whole_answers(network, [network.parts(SYSTEM.written(text))], 16, lambda *_: None)
    return SYSTEM.with_warning(text.encode(), translation)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Where is the nearest pharmacy?",
            "privet kak dela",
            "Де найближча аптека?",
            "Він любить каву і чай.",
        ),
        *(
            "Аз обичам чай.",
            "Где је најближа апотека?",
            "Сәлам",
            "我喜欢茶。",
            "اين أقرب صيدلية؟",
            "ыфва йцук",
        ),
        # Russian, and more than the network knows.
        *("Вот мой бумажник.", "Мы купили синхрофазотрон.", "Ломоносов родился в 1711 году."),
        *("Ich люблю tea.", "Фирма Volvo выпустила новый автомобиль.", "Он 😀 пришёл."),
    ],
)
def test_foreign_and_rare_texts_are_not_sure(network: TranslatorNetwork, model: ModelInfo, text: str) -> None:
    answer = answered(network, text)
    assert model.is_sure(answer) is False, answer


def test_most_everyday_sentences_are_called_sure(network: TranslatorNetwork, model: ModelInfo) -> None:
    sure = [model.is_sure(answered(network, text)) for text in SYSTEM.meanings]
    assert sum(map(bool, sure)) > len(sure) / 2


@pytest.mark.parametrize(
    "text", ["12345", "+7 495 123-45-67", "…", "№ 5", "😀😀 🍕", "\U0001f468\u200d\U0001f467 👍🏿"]
)
def test_a_text_without_a_letter_is_answered_with_itself(
    network: TranslatorNetwork, model: ModelInfo, text: str
) -> None:
    """The network said 124345 to the first of them."""
    answer = answered(network, text)
    assert (answer.text, answer.tokens, answer.sentences) == (text, 0, [])
    assert model.is_sure(answer)


def test_pictograms_around_a_sentence_stay_where_they_are(network: TranslatorNetwork) -> None:
    answer = answered(network, "👍🏿 Я люблю чай. 😀")
    assert answer.text == f"👍🏿 {answered(network, 'Я люблю чай.').text} 😀"
    assert not answer.warning


def test_a_text_is_as_sure_as_its_least_sure_sentence(network: TranslatorNetwork, model: ModelInfo) -> None:
    answer = answered(network, SEVERAL)
    assert answer.sentences
    texts = [answer.text[begin:end] for begin, end, _ in answer.sentences]
    apart = "Я люблю чай.", "Гиппопотам съел фикус.", "12 Где ближайшая аптека?"
    alone = [answered(network, text) for text in apart]
    assert texts == [single.text for single in alone]
    scores = [sentence.score for sentence in answer.sentences]
    assert scores == pytest.approx([single.score for single in alone])
    assert [model.reaches(score) for score in scores] == [model.is_sure(single) for single in alone]
    assert answer.worst == min(sentence.score for sentence in answer.sentences)
    assert model.is_sure(answer) is False


def test_other_wordings_are_those_of_a_text_that_is_one_sentence(network: TranslatorNetwork) -> None:
    texts = ["Я люблю чай.".encode(), "Я люблю чай. Где ближайшая аптека?".encode()]
    one, two = whole_answers(network, network.requested({"TEXT": texts, BEAMS: [2, 2]}), 16, lambda *_: None)
    assert (len(one.others), two.others) == (1, [])


def test_only_the_last_piece_of_a_streamed_answer_has_its_sentences(network: TranslatorNetwork) -> None:
    pieces: list[GeneratedText] = []
    answer = GrowingAnswer(network.parts(SEVERAL), network)
    for row in answer.rows:
        row.on_tokens = lambda _row: pieces.append(answer.new_piece())
    Loop(network.engine, network.vocabulary, 4).complete(answer.rows)
    outputs = [network.outputs(piece) for piece in pieces]
    assert ["SENTENCES" in output for output in outputs] == [False] * (len(pieces) - 1) + [True]
    whole = answered(network, SEVERAL)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].sentences == whole.sentences


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the shipped models that answer."""
    for name in ANSWERING:
        shutil.copytree(DEFAULT_REPOSITORY / name, tmp_path / "models" / name)
    return tmp_path / "models"


def test_calibrate_writes_the_threshold_to_every_model_and_its_manifest(
    network: TranslatorNetwork, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {text: answered(network, text) for text in SYSTEM.meanings}
    data = tmp_path / "pairs.tsv"
    pairs = [f"{answer.text}\t{text}" for text, answer in answers.items()]
    lines = [f"{split}\tm\t{pair}" for split in ("dev", "test") for pair in pairs]
    data.write_text("\n".join(lines))
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}
    command = ["check", "translator", "--calibrate", "--data", data, "--model-repository", models]
    assert "written to translator, translator_stream" in said(*command)
    # All that it says counts as right here, so that all of it is sure.
    lowest = min(answer.score or 0.0 for answer in answers.values())
    for name in ANSWERING:
        folder = models / name
        threshold = parameter(as_json(read_config(folder)), THRESHOLD_PARAMETER)
        assert float(threshold) == pytest.approx(lowest, abs=1e-4)
        about = manifest.read_manifest(folder / "1")
        assert about["certainty"]["parts"]["test"]["sure"] == 1.0
        config = ConfigFile.read(folder)
        assert config.of_manifest(about).text() == (folder / "config.pbtxt").read_text()
        assert (folder / "1" / "model.py").read_bytes() == before[folder / "1" / "model.py"]
    assert json.loads(gourmet(*command, "--json", "-").stdout)["certainty"] == about["certainty"]
    # Without a repository the shipped models stay as they are, and copies that replace them change.
    shipped = DEFAULT_REPOSITORY / "translator" / "config.pbtxt"
    before_ours = shipped.read_text()
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path / "home"))
    said(*command[:-2])
    assert shipped.read_text() == before_ours
    assert read_config(own_models() / "translator") != read_config(shipped.parent)
    # A Triton whose folders are not known here is not told that it has the new threshold.
    assert "name its folder with --repository" in said(*command[:-2], "--url", "127.0.0.1:9", status=2)


def test_check_refuses_to_calibrate_a_system_that_evaluate_calibrates(tmp_path: Path) -> None:
    refusal = said("check", "food11", "--calibrate", "--data", tmp_path, status=2)
    assert "gourmet evaluate food11" in refusal
