"""The gate of text systems: an export has to answer as what it was made from does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gourmet.deploying.target import Check

Answer = Callable[[str], str]
MIN_EQUAL: Final = 0.95


def same_texts(
    reference: Answer, model: Answer, texts: Sequence[str], least: float = MIN_EQUAL
) -> list[Check]:
    """Nearly all `texts` have the same answer; rounding may turn a word where two are as likely."""
    equal = 0
    for text in texts:
        try:
            equal += model(text) == reference(text)
        except Exception as exc:  # whatever a runtime raises on a broken model, the gate's answer is no
            reason = next(iter(str(exc).splitlines()), type(exc).__name__)[:80]
            return [Check(f"answers to {len(texts)} texts", reason, "an answer each", False)]
    share = equal / len(texts) if texts else 0.0
    return [Check(f"same answers, {len(texts)} texts", f"{share:.3f}", f"at least {least}", share >= least)]
