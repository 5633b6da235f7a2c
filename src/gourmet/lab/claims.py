"""What a reader should have seen, checked on their machine: each claim holds, or is explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gourmet.errors import GourmetError

_UNDECIDED: Final = (
    "The figures allow both, or are of one window, which has no interval: nothing is found. Longer windows "
    "on a quieter machine would tell (GOURMET_LAB_WINDOWS, GOURMET_LAB_SECONDS)."
)


@dataclass(frozen=True)
class Claim:
    """What a reader should see, whether it holds here, by which figures, and what to make of it if not.

    None is for figures that do not decide it, as `gourmet.measure.comparison` has it.
    """

    words: str
    holds: object
    figures: str
    otherwise: str

    @property
    def word(self) -> str:
        return "undecided here" if self.holds is None else "seen here" if self.holds else "NOT seen here"

    @property
    def mark(self) -> str:
        return "·" if self.holds is None else "✔" if self.holds else "✘"

    @property
    def advice(self) -> str:
        return _UNDECIDED if self.holds is None else self.otherwise

    def text(self) -> str:
        said = f"{self.word}: {self.words} ({self.figures})."
        return said if self.holds else f"{said}\n  What to make of it: {self.advice}"

    def markdown(self) -> str:
        said = f"> {self.mark} **{self.word}:** {self.words} ({self.figures})."
        return said if self.holds else f"{said}  \n> *What to make of it:* {self.advice}"


class Judgement(tuple[Claim, ...]):
    """The claims of one exercise, shown as text or as Markdown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(claim.text() for claim in self)

    def _repr_markdown_(self) -> str:
        return "\n>\n".join(claim.markdown() for claim in self)


class Grades(dict[str, Judgement]):
    """All judgements so far, by exercise; judging an exercise again replaces what was said before."""

    def judge(self, exercise: str, *claims: Claim) -> Judgement:
        """Keep the claims of an exercise, and show them."""
        self[exercise] = Judgement(claims)
        return self[exercise]

    def require(self, exercise: str, *claims: Claim) -> Judgement:
        """Like `judge`, but stop where a claim does not hold: nothing after it would mean anything."""
        for wrong in (claim for claim in self.judge(exercise, *claims) if not claim.holds):
            raise GourmetError(f"{wrong.words}: no ({wrong.figures}). {wrong.otherwise}")
        return self[exercise]

    def __repr__(self) -> str:
        held = [bool(claim.holds) for claims in self.values() for claim in claims]
        return f"{sum(held)} of {len(held)} claims seen on this machine"

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {exercise} | {claim.words} | {claim.mark} {claim.word} |"
            for exercise, claims in self.items()
            for claim in claims
        ]
        return "\n".join([f"**{self!r}.**", "", "| exercise | claim | |", "|---|---|---|", *rows])
