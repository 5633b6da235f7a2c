"""The pages in Russian: every text is translated, and programs get English."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app import create_app
from app.pages.food import SAMPLES, SYSTEM
from app.web.errors import STATUSES
from app.web.messages import ENGLISH, NAMES, PROBLEMS, TEXTS, TRANSLATIONS, VERDICTS
from app.web.settings import Settings
from gourmet.pictures.certainty import RankedLabels

RUSSIAN = {"Accept-Language": "ru-RU,ru;q=0.9,en;q=0.5", "Accept": "text/html"}
# Pages for engineers are English, and so is what is the same in each language.
ENGLISH_ALONE = re.compile(
    r"lab\.|api\.|site\.name|nav\.api|translate\.placeholder|js\.(shared_by|phase_triton)"
)


@pytest.fixture(scope="module")
def app() -> Flask:
    return create_app(Settings(triton_url="127.0.0.1:9"))


@pytest.fixture
def browser(app: Flask) -> FlaskClient:
    return app.test_client()


def placeholders(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)


@pytest.mark.parametrize("language", [language for language in TRANSLATIONS if language != ENGLISH])
def test_a_language_has_every_text_with_its_placeholders(language: str) -> None:
    pairs: list[tuple[Mapping[str, str], Mapping[str, str]]] = [
        (TEXTS, TRANSLATIONS[language]),
        (VERDICTS[ENGLISH], VERDICTS[language]),
    ]
    for english, translated in pairs:
        assert english.keys() == translated.keys()
        for text_id, text in english.items():
            assert placeholders(text) == placeholders(translated[text_id]), text_id
            if not ENGLISH_ALONE.match(text_id) and re.search(r"[a-z]{3}", re.sub(r"\{\w+\}", "", text)):
                assert re.search("[а-я]", translated[text_id].lower()), f"{text_id} is not translated"
    assert STATUSES.keys() <= PROBLEMS[language].keys()
    dishes = {dish.name for dish in SYSTEM.dishes if dish.name}
    samples = {path.stem.split("_")[1].replace("-", " ").capitalize() for path in SAMPLES.glob("*.jpg")}
    assert {*SYSTEM.labels, SYSTEM.subject, *dishes, *samples} <= NAMES[language].keys()


def test_the_browser_s_language_is_taken_and_a_visitor_may_choose_another(browser: FlaskClient) -> None:
    page = browser.get("/", headers=RUSSIAN)
    assert '<html lang="ru">' in page.text
    assert ">Что на тарелке?<" in page.text
    assert {"Accept-Language", "Cookie"} <= set(page.vary)
    (link,) = re.findall(r'href="(\S*language=en)"', page.text)
    assert '<html lang="en">' in browser.get(link, headers=RUSSIAN).text
    assert '<html lang="en">' in browser.get("/", headers=RUSSIAN).text, "the choice is kept"
    assert '<html lang="ru">' in browser.get("/?language=ru", headers={"Accept": "text/html"}).text
    assert '<html lang="ru">' in browser.get("/?language=xx", headers={"Accept": "text/html"}).text
    page = browser.get("/?endpoint=x&_scheme=javascript&language=ru", headers=RUSSIAN)
    assert 'href="/?endpoint=x&amp;_scheme=javascript&amp;language=en"' in page.text


def test_no_english_is_left_on_the_page_of_food(browser: FlaskClient) -> None:
    page = browser.get("/", headers=RUSSIAN).text
    shown = re.sub(r"(?s)<head>.*</head>|<script.*?</script>|<code>.*?</code>|<[^>]*>", " ", page)
    words = set(re.findall(r"[A-Za-z]{3,}", shown))
    # Names: of the product, its model, formats, and the photos' authors.
    names = "GourmetGram food classifier API JPEG PNG WebP GIF BMP TIFF AVIF HEIC CSV JSON"
    assert not words - {*names.split(), "Keith", "Jay", "The", "Company", "English"}


@pytest.mark.parametrize("path", ["/", "/compare", "/digits", "/translate", "/caption", "/new"])
def test_each_page_has_a_russian_heading_and_shows_no_part_of_the_program(
    browser: FlaskClient, path: str
) -> None:
    page = browser.get(path, headers=RUSSIAN).text
    assert re.search("(?s)<h1>[^<]*[а-я]", page)
    assert "&lt;function" not in page


def test_programs_get_english_and_the_page_s_script_the_language_of_the_page(browser: FlaskClient) -> None:
    for address in ("/api/v1/health", "/api/v1/models"):
        program = browser.get(address, headers={"Accept-Language": "ru"}).text
        assert not re.search("[а-я]", program), program
    script = {"Accept-Language": "ru", "Accept": "application/json", "X-Requested-With": "fetch"}
    error = browser.get("/api/v1/models", headers=script).json["error"]
    assert error == {**error, "code": "triton_unavailable", "message": PROBLEMS["ru"]["triton_unavailable"]}
    health = browser.get("/api/v1/health", headers=script).json
    assert health["message"] == PROBLEMS["ru"]["triton_unavailable"]
    page = browser.get("/nowhere", headers=RUSSIAN).text
    assert "<h1>Страница не найдена</h1>" in page
    assert PROBLEMS["ru"]["not_found"] in page


@pytest.mark.parametrize(
    ("probabilities", "relevance", "text", "hint"),
    [
        ((0.0, 0.9, 0.1), None, "Молочные продукты", ""),
        ((0.5, 0.45, 0.05), None, "Хлеб или Молочные продукты", "Вместе на эти два"),
        ((0.5, 0.2, 0.3), None, "Хлеб", "Меньше 80%"),
        ((0.9, 0.1, 0.0), 0.1, "Похоже, это не еда", "Если это еда, ближе всего класс «Хлеб»."),
        ((0.9, 0.1, 0.0), 0.6, "Трудно сказать, еда ли это", "Если это еда, ближе всего класс «Хлеб»."),
    ],
    ids=("sure", "two", "not sure", "irrelevant", "doubtful"),
)
def test_an_answer_is_said_in_russian(
    probabilities: tuple[float, ...], relevance: float | None, text: str, hint: str
) -> None:
    answer = RankedLabels(SYSTEM, SYSTEM.labels[:3], probabilities, 0.8, relevance, 0.5)
    said = answer.say(VERDICTS["ru"], NAMES["ru"])
    assert said.text == text
    assert hint in said.hint
    assert not re.search("[a-z]", said.text + said.word + said.hint)
