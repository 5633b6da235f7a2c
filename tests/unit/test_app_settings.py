"""Settings: the defaults, the variables and what bad values are answered with."""

from __future__ import annotations

import pytest

from app.core.settings import Settings, SettingsError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"TRITON_SERVER_URL": "", "MAX_UPLOAD_MB": " "}) == Settings()
    assert Settings().triton_url == "localhost:8000"
    usual = Settings().models
    assert (usual["food11"], usual["digits"]) == ("food_classifier", "digits")
    assert Settings().max_upload_bytes == 10_000_000


def test_every_variable_is_read() -> None:
    settings = Settings.from_env(
        {
            "TRITON_SERVER_URL": "triton_server:9000",
            "FOOD11_MODEL_NAME": "food_classifier_onnx",
            "DIGITS_MODEL_NAME": "mnist",
            "MAX_UPLOAD_MB": "2.5",
            "MAX_PHOTOS": "3",
            "MAX_CALL_MB": "9",
            "UPLOAD_DEADLINE_S": "7",
            "REQUEST_DEADLINE_S": "1.5",
            "EXPLAIN_DEADLINE_S": "9.5",
            "GENERATE_DEADLINE_S": "99",
            "CONNECT_TIMEOUT_S": "0.5",
        }
    )
    assert settings == Settings(
        triton_url="triton_server:9000",
        models={"food11": "food_classifier_onnx", "digits": "mnist"},
        max_upload_mb=2.5,
        max_photos=3,
        max_call_mb=9,
        upload_deadline_s=7,
        request_deadline_s=1.5,
        explain_deadline_s=9.5,
        generate_deadline_s=99,
        connect_timeout_s=0.5,
    )


@pytest.mark.parametrize(
    "url", ["triton:8000", "127.0.0.1:1", "[::1]:8000", "a.b-c.example:65535", "a:8000,b:8000"]
)
def test_addresses_of_host_and_port_are_taken(url: str) -> None:
    assert Settings.from_env({"TRITON_SERVER_URL": url}).triton_url == url


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRITON_SERVER_URL", "http://triton:8000"),
        ("TRITON_SERVER_URL", "triton"),
        ("TRITON_SERVER_URL", "triton:"),
        ("TRITON_SERVER_URL", ":8000"),
        ("TRITON_SERVER_URL", "triton:0"),
        ("TRITON_SERVER_URL", "triton:70000"),
        ("TRITON_SERVER_URL", "triton:8000/x"),
        ("FOOD11_MODEL_NAME", "a/../b"),
        ("FOOD11_MODEL_NAME", "two words"),
        ("DIGITS_MODEL_NAME", "two words"),
        ("MAX_UPLOAD_MB", "0"),
        ("MAX_UPLOAD_MB", "-1"),
        ("MAX_UPLOAD_MB", "ten"),
        ("MAX_UPLOAD_MB", "nan"),
        ("MAX_UPLOAD_MB", "1000"),
        ("MAX_PHOTOS", "0"),
        ("MAX_PHOTOS", "1.5"),
        ("MAX_CALL_MB", "nan"),
        ("REQUEST_DEADLINE_S", "0"),
        ("REQUEST_DEADLINE_S", "inf"),
        ("UPLOAD_DEADLINE_S", "1e9"),
        ("CONNECT_TIMEOUT_S", "x"),
    ],
)
def test_a_bad_value_is_refused_by_variable_and_value(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: value})
    assert variable in str(caught.value)
    assert value in str(caught.value) or f"{float(value):g}" in str(caught.value)


@pytest.mark.parametrize(
    ("addresses", "bad"), [("a:8000,b", "b"), ("grpc://a:8001,b:8000", "grpc://a:8001"), ("a:8000,", "")]
)
def test_of_several_addresses_the_bad_one_is_named(addresses: str, bad: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"TRITON_SERVER_URL": addresses})
    assert str(caught.value).startswith(f"TRITON_SERVER_URL is {bad!r}: give Triton's HTTP address")
