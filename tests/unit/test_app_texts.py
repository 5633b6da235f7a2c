"""The words of the pages: each in one place, and nothing of a visitor's taken for markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.api import schemas
from app.core import messages

APP = Path(messages.__file__).parents[1]


def test_every_text_that_a_template_names_is_there() -> None:
    for template in APP.glob("templates/**/*.html"):
        for text_id in re.findall(r"""\bt\(\s*["']([\w.-]+)["']\s*[,)]""", template.read_text()):
            assert text_id in messages.TEXTS, f"{template.name} says t('{text_id}')"


def test_every_text_of_a_schema_s_field_is_of_one_that_is_there() -> None:
    for text_id in messages.starting_with("shape."):
        shape, _, name = text_id.partition(".")
        assert name in getattr(schemas, shape).model_fields, text_id


def test_an_id_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        messages.t("no.such.text")


def test_values_are_put_in_and_never_taken_for_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(messages.TEXTS, "x", "by {model}")
    assert messages.t("x", model="<m>") == "by <m>"
    assert not hasattr(messages.t("x", model="<m>"), "__html__")  # so that the template escapes it
