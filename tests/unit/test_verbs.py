"""The verbs as a user meets them."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result
from support.no_stack import no_stack

from gourmet.cli import VERBS, main

__all__ = ["no_stack"]


def gourmet(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_translate_refuses_a_file_that_does_not_exist(tmp_path: Path) -> None:
    for name in (tmp_path / "texts", "russian.txt"):
        refused = gourmet("translate", name, "--url", "127.0.0.1:9")
        assert refused.exit_code == 2, refused.output
        assert f"{name} does not exist" in refused.stderr


def test_config_starts_hundreds_of_instances_only_with_force() -> None:
    words = ("config", "food_classifier", "--instances", "500", "--url", "127.0.0.1:9")
    refused = gourmet(*words)
    assert (refused.exit_code, "Add --force" in refused.stderr) == (2, True), refused.output
    assert "127.0.0.1:9" in gourmet(*words, "--force").stderr  # it goes on, to a Triton that is not there


def test_list_hides_models_for_study_unless_all() -> None:
    short, whole = gourmet("list").output, gourmet("list", "--all").output
    assert "translator_encoder" not in short
    assert "--all lists them" in short
    assert "translator_encoder" in whole
    assert "food_classifier_int8" in short


def test_every_verb_of_the_help_is_a_command() -> None:
    for verb in VERBS:
        shown = gourmet(verb, "--help")
        assert shown.output.startswith(f"Usage: main {verb} ["), (verb, shown.output)
