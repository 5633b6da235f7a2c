"""The verbs as a user meets them: in groups, with a system or a model, refusing what does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.no_stack import no_stack

from gourmet.cli import main

__all__ = ["no_stack"]


def gourmet(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_evaluate_without_weights_names_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("food11", "food_classifier_int8"):
        refused = gourmet("evaluate", name)
        assert refused.exit_code == 2
        assert "train first, or measure the served weights on labelled examples" in refused.stderr


def test_a_name_that_is_neither_system_nor_model_is_refused() -> None:
    refused = gourmet("evaluate", "fod11")
    assert refused.exit_code == 2
    assert "'fod11' is neither a system nor a model" in refused.stderr


def test_translate_refuses_a_file_that_does_not_exist(tmp_path: Path) -> None:
    for name in (tmp_path / "texts", "russian.txt"):
        refused = gourmet("translate", name, "--url", "127.0.0.1:9")
        assert refused.exit_code == 2, refused.output
        assert f"{name} does not exist" in refused.stderr


def test_list_hides_models_for_study_unless_all() -> None:
    short, whole = gourmet("list").output, gourmet("list", "--all").output
    assert "translator_encoder" not in short
    assert "--all lists them" in short
    assert "translator_encoder" in whole
    assert "food_classifier_int8" in short
