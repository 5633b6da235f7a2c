"""Each route, verb, setting and served model is in at least one test: the lists are made from the code."""

from __future__ import annotations

import re
from pathlib import Path

from app import create_app
from app.web.settings import VARIABLES
from gourmet.cli import main
from gourmet.repository.models import DEFAULT_REPOSITORY, model_names

TESTS = Path(__file__).parents[1]


def verbs() -> list[str]:
    """Return the verbs; groups give theirs, such as `bench run`."""
    names = []
    for name in main.list_commands(None):  # type: ignore[arg-type]
        command = main.get_command(None, name)  # type: ignore[arg-type]
        names += [f"{name} {verb}" for verb in getattr(command, "commands", {})] or [name]
    return names


def patterns() -> dict[str, str]:
    """What stands in a test of each."""
    routes = {rule.rule for rule in create_app().url_map.iter_rules()}
    quoted = r'["\'/{{ ]{}["\'/?}}, ]'
    return {
        **{f"route {route}": re.escape(route.partition("<")[0]) for route in routes},
        **{f"setting {name}": rf"\b({name}|{field})\b" for field, name in VARIABLES.items()},
        **{f"model {name}": rf"\b{re.escape(name)}\b" for name in model_names(DEFAULT_REPOSITORY)},
        **{f"verb {verb}": quoted.format(verb.rpartition(" ")[2]) for verb in verbs()},
    }


def test_every_public_name_is_in_a_test() -> None:
    text = "\n".join(path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__))
    assert [name for name, pattern in patterns().items() if not re.search(pattern, text)] == []
