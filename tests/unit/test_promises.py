"""Each promise of the docs has one test, which names it; docs/promises.md is the table of both."""

from __future__ import annotations

from collections import Counter

import promises


def test_each_promise_of_the_tables_has_one_test_and_each_quote_is_in_its_page() -> None:
    proofs = list(promises.proofs())
    counts = Counter(proof.promise for proof in proofs)
    assert [promise for promise in promises.promises() if counts[promise] != 1] == []
    assert len(promises.promises()) > 30
    for promise in counts.keys() - promises.promises().keys():
        name, _, quote = promise.partition(": ")
        page = (promises.ROOT / {"README": "README.md", "models": "docs/models.md"}[name]).read_text()
        assert quote in " ".join(page.split()), promise
        assert counts[promise] == 1, promise


def test_the_table_is_made_of_the_marks() -> None:
    assert promises.MADE.read_text() == promises.made(), "run .venv/bin/python -P scripts/promises.py"
