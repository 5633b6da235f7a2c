"""Write docs/promises.md: each promise of the docs with the test that proves it. A test keeps it in step.

    .venv/bin/python -P scripts/promises.py

A test names its promise: `@pytest.mark.promise("SECURITY 3")` is a row of SECURITY.md's table, `"operating:
Triton is killed"` one of docs/operating.md's faults, and `"README: …"` and `"models: …"` quote README.md and
docs/models.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MADE: Final = ROOT / "docs" / "promises.md"
_DOCS: Final = {
    "README": "README.md",
    "models": "docs/models.md",
    "SECURITY": "SECURITY.md",
    "operating": "docs/operating.md",
}
_HEAD: Final = """# Promises and their tests

Each promise of these pages, and the test that proves it. Figures of accuracy and speed are measured
([model cards](../README.md#how-good), [measuring.md](measuring.md)) and not promised. `.ci/run` runs the
README's console blocks as well. Written by `scripts/promises.py` from the marks of the tests.
"""


@dataclass(frozen=True)
class Proof:
    """A test that proves a promise, and what runs it."""

    promise: str
    test: str
    run_by: str


def proofs() -> Iterator[Proof]:
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        if "mark.promise(" not in (text := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        of_file = {
            mark
            for node in assigned
            if ast.unparse(node.targets[0]) == "pytestmark"
            for mark in re.findall(r"pytest\.mark\.(\w+)", ast.unparse(node.value))
        }
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            names = of_file | {name for decorator in function.decorator_list for name in _marks(decorator)}
            run_by = f"make test-{path.parent.name}" if path.parent.name == "containers" else "make test"
            for tier in names & {"slow", "nightly"}:
                run_by = f"make test-{tier}"
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call) and "promise" in _marks(decorator):
                    promise = ast.literal_eval(decorator.args[0])
                    test = f"{path.relative_to(ROOT / 'tests').as_posix()}::{function.name}"
                    yield Proof(promise, test, run_by)


def _marks(decorator: ast.expr) -> list[str]:
    """Return NAME of a decorator `pytest.mark.NAME` or `pytest.mark.NAME(…)`."""
    text = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return [text.removeprefix("pytest.mark.")] if text.startswith("pytest.mark.") else []


def promises() -> dict[str, str]:
    """Return the rows of the tables that each need a test, with their words. A ° was caused by hand."""
    rows = {}
    for number, words in re.findall(r"^\| (\d+) \| (.*?) \|", _table("SECURITY", "| # |"), re.MULTILINE):
        rows[f"SECURITY {number}"] = f"{number}. {words}"
    for fault, words in re.findall(r"^\| (.*?) \| (.*?) \|", _table("operating", "| fault |"), re.MULTILINE):
        if not fault.endswith("°"):
            rows[f"operating: {fault}"] = f"{fault}: {words}"
    return rows


def _table(name: str, head: str) -> str:
    """Return the rows of the table that begins with `head`."""
    text = (ROOT / _DOCS[name]).read_text(encoding="utf-8")
    return text.partition(f"\n{head}")[2].partition("|---|")[2].partition("\n\n")[0]


def made() -> str:
    rows, lines = promises(), [_HEAD]
    found = sorted(
        proofs(), key=lambda proof: list(rows).index(proof.promise) if proof.promise in rows else -1
    )
    for name, page in _DOCS.items():
        lines += [f"## {page}", "", "| promise | test | run by |", "|---|---|---|"]
        for proof in found:
            doc, _, words = proof.promise.replace("SECURITY ", "SECURITY: ").partition(": ")
            if doc == name:
                lines.append(f"| {rows.get(proof.promise, words)} | `{proof.test}` | `{proof.run_by}` |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    MADE.write_text(made(), encoding="utf-8")
