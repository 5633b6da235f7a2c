"""No regular expression of the app takes more time than its text is long, whatever is in that.

Each is found by looking: those that a module has, and those that are written where they are used. Its hostile
texts are made of the pattern itself: what its beginnings match, again and again, without what would end them.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
import time
from collections.abc import Iterator
from pathlib import Path
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import app
import gourmet.pictures
import gourmet.systems

LENGTHS = (20_000, 80_000, 1_280_000)
# Several times what the slowest of them takes; the square of the time is ten times this at the second length.
S_FOR_EACH_CHARACTER = 1e-6
S_AT_ALL = 0.02
_OF_VISITORS = (".contract", ".texts", ".tokenizer", ".serving")


def modules() -> Iterator[Any]:
    for package in (app, gourmet.pictures, gourmet.systems):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # Of a system, what looks at visitors' texts, in the web app or beside others' answers.
            if package is not gourmet.systems or found.name.endswith(_OF_VISITORS):
                yield importlib.import_module(found.name)


def written_in(module: Any) -> Iterator[re.Pattern[Any]]:
    """Those that `re.sub` and the like are given as they are used."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args:
            flags = eval("|".join(["0", *re.findall(r"re\.[A-Z]+", ast.unparse(node))]))
            yield re.compile(eval(ast.unparse(node.args[0]), vars(module)), flags)


def patterns() -> dict[str, re.Pattern[Any]]:
    found = {}
    for module in modules():
        held = [value for value in vars(module).values() if isinstance(value, re.Pattern)]
        for pattern in (*held, *written_in(module)):
            found[f"{module.__name__}: {pattern.pattern!r}"] = pattern
    return found


def matched(parsed: Any, groups: dict[int, str]) -> list[str]:
    """A text for each beginning of a parsed pattern that it matches, the shortest first."""
    texts = [""]
    for kind, about in parsed:
        for more in _matched(kind, about, groups):
            texts.append(texts[-1] + more if more else texts[-1])
    return texts


def _matched(kind: Any, about: Any, groups: dict[int, str]) -> list[str]:
    if kind is kinds.LITERAL:
        return [chr(about)]
    if kind is kinds.ANY:
        return ["a"]
    if kind in (kinds.NOT_LITERAL, kinds.IN):
        among = re.compile(f"[{''.join(_in_class(kind, about))}]", re.S)
        return [next(each for each in "a0 -.<>[]\"'/\n\xff\x01é" + _literals(about) if among.match(each))]
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
        least, _, inner = about
        once = matched(inner, groups)[-1]
        return [once * max(1, min(least, 3))]
    if kind is kinds.SUBPATTERN:
        inner = matched(about[-1], groups)
        groups[about[0]] = inner[-1]
        return [later[len(before) :] for before, later in itertools.pairwise(inner)]
    if kind is kinds.ATOMIC_GROUP:
        return [matched(about, groups)[-1]]
    if kind is kinds.BRANCH:
        return [matched(about[1][0], groups)[-1]]
    if kind is kinds.GROUPREF:
        return [groups[about]]
    assert kind in (kinds.AT, kinds.ASSERT, kinds.ASSERT_NOT), kind
    return [""]


def _in_class(kind: Any, about: Any) -> Iterator[str]:
    named = {
        **{kinds.CATEGORY_DIGIT: r"\d", kinds.CATEGORY_NOT_DIGIT: r"\D", kinds.CATEGORY_WORD: r"\w"},
        **{kinds.CATEGORY_NOT_WORD: r"\W", kinds.CATEGORY_SPACE: r"\s", kinds.CATEGORY_NOT_SPACE: r"\S"},
    }
    if kind is kinds.NOT_LITERAL:
        yield "^" + re.escape(chr(about))
        return
    for each, value in about:
        if each is kinds.NEGATE:
            yield "^"
        elif each is kinds.LITERAL:
            yield re.escape(chr(value))
        elif each is kinds.RANGE:
            yield "-".join(re.escape(chr(end)) for end in value)
        else:
            yield named[value]


def _literals(about: Any) -> str:
    members = about if isinstance(about, list) else []
    plain = [(kind, value) for kind, value in members if kind in (kinds.LITERAL, kinds.RANGE)]
    ends = [value[0] if kind is kinds.RANGE else value for kind, value in plain]
    return "".join(map(chr, ends))


def hostile(pattern: re.Pattern[Any]) -> Iterator[str]:
    """What is repeated: each beginning of what matches, and each character of it."""
    beginnings = [text for text in matched(parser.parse(pattern.pattern, pattern.flags), {}) if text]
    yield from dict.fromkeys([*beginnings, *"".join(beginnings[-1:]), " ", "a", "<", "0"])


def slow(pattern: re.Pattern[Any], length: int) -> str:
    """The first of the hostile texts of that length that takes it too long, or nothing."""
    for part in hostile(pattern):
        text: Any = (part * (length // len(part)))[:length] + "\x00"
        data = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
        began = time.thread_time()
        for _ in pattern.finditer(data):
            pass
        took_s = time.thread_time() - began
        if took_s > S_AT_ALL + length * S_FOR_EACH_CHARACTER:
            return f"{took_s:.2f} s for {length:,} characters of {part!r}"
    return ""


ALL = patterns()


@pytest.mark.parametrize("name", ALL)
def test_a_pattern_takes_no_more_than_a_time_in_proportion_to_its_text(name: str) -> None:
    assert not next(filter(None, (slow(ALL[name], length) for length in LENGTHS)), "")


@pytest.mark.parametrize(
    "text",
    [
        r"<title[^>]*>.*?</title>",
        r"row \d+ of \d+: (.+) \[(\w+)\]",
        r"(?:<a[^>]*>)",
        r"\s*<!doctype",
        r"(['\"])x.*y\1",
        r"\d+b",
        r"[.!?…]+[\"'»”’)\\]]*(?=\s+[A-ZА-Я])|\n",
    ],
)
def test_one_that_takes_the_square_of_the_time_is_found(text: str) -> None:
    assert any(slow(re.compile(text, re.S), length) for length in LENGTHS[:2])


def test_those_of_the_lab_and_those_that_are_written_where_they_are_used_are_among_them() -> None:
    assert any("title" in name for name in ALL)
    assert any(r"[^a-z]+" in name for name in ALL)
    assert len(ALL) > 20
