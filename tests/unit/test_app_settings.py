"""Settings: the defaults, the variables and what bad values are answered with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.web.settings import VARIABLES, Rate, Settings, SettingsError
from gourmet.systems.registry import load_all

DEFAULTS = vars(Settings())


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"TRITON_SERVER_URL": "", "MAX_UPLOAD_MB": " "}) == Settings()
    assert Settings().triton_url == "localhost:8000"
    usual = Settings().models
    assert (usual["food11"], usual["digits"]) == ("food_classifier", "digits")
    assert Settings().max_upload_bytes == 10_000_000


def test_the_documented_defaults_are_the_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text().partition("\n\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", page, re.MULTILINE))
    models = {system.model_variable: Settings().models[name] for name, system in load_all().items()}
    defaults = models | {variable: DEFAULTS[name] for name, variable in VARIABLES.items()}
    assert documented == {
        variable: f"{value:g}" if isinstance(value, float) else str(value) if value or value == 0 else "none"
        for variable, value in defaults.items()
    }


def test_waiting_places_and_threads_follow_from_the_places_at_work() -> None:
    settings = Settings(max_at_work=9, max_waiting=17)
    assert settings.at_work == {"photos": 9, "texts": 9, "heat maps": 4}
    assert settings.waiting == {"photos": 17, "texts": 3, "heat maps": 3}, "an eighth, rounded up"
    assert settings.threads == (9 + 9 + 4) + (17 + 3 + 3) + 100
    assert settings.max_sandboxed == 4


@pytest.mark.parametrize(("text", "seconds"), [("7/s", 1), ("7/min", 60), ("7/h", 3600)])
def test_a_rate_has_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert Settings.from_env({"RATE_LIMIT": text}).rate_limit == Rate(7, seconds)


def test_every_variable_is_read() -> None:
    names = {"FOOD11_MODEL_NAME": "food_classifier_onnx", "DIGITS_MODEL_NAME": "mnist"}
    numbers = {
        name: variable for name, variable in VARIABLES.items() if isinstance(DEFAULTS[name], int | float)
    }
    read = Settings.from_env({"TRITON_SERVER_URL": "t:9000", **names, **dict.fromkeys(numbers.values(), "1")})
    assert (read.triton_url, read.models["food11"], read.models["digits"]) == ("t:9000", *names.values())
    assert {name: getattr(read, name) for name in numbers} == dict.fromkeys(numbers, 1)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("TRITON_SERVER_URL", url) for url in ("ftp://triton:8000", "triton", ":8000", "a:8000,b:8000")),
        ("FOOD11_MODEL_NAME", "a/../b"),
        ("DIGITS_MODEL_NAME", "two words"),
        *(("MAX_UPLOAD_MB", number) for number in ("0", "ten", "nan", "1000")),
        ("MAX_PHOTOS", "1.5"),
        ("REQUEST_DEADLINE_S", "inf"),
        ("KEEP_CORRECTIONS", "s3://bucket/corrections"),
    ],
)
def test_a_bad_value_is_refused_by_variable_and_value(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{variable} is .*{value}"):
        Settings.from_env({variable: value})


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "keys"
    secret.write_text("a-key-of-the-tests-1,a-key-of-the-tests-2\n")
    read = Settings.from_env({"API_KEYS_FILE": str(secret)})
    assert read.api_keys == ("a-key-of-the-tests-1", "a-key-of-the-tests-2")
    own = {"API_KEYS_FILE": "/nowhere", "API_KEYS": "a-key-of-the-tests-3"}
    assert Settings.from_env(own).api_keys == ("a-key-of-the-tests-3",), "the variable itself goes first"
    with pytest.raises(SettingsError, match="API_KEYS is one that is too short") as caught:
        Settings.from_env({"API_KEYS": "a-key-of-15-now"})
    assert "a-key-of-15" not in str(caught.value)
    with pytest.raises(SettingsError, match="API_KEYS_FILE is '/nowhere', which cannot be read"):
        Settings.from_env({"API_KEYS_FILE": "/nowhere"})
