"""What a reader should have seen, checked on their machine: each claim holds, or is explained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gourmet.errors import GourmetError


class NotRight(GourmetError):
    """Something is wrong without which the rest of the notebook means nothing."""


@dataclass(frozen=True)
class Claim:
    """What a reader should see, whether it holds here, by which figures, and what to make of it if not."""

    words: str
    holds: bool
    figures: str
    otherwise: str

    @property
    def word(self) -> str:
        return "seen here" if self.holds else "NOT seen here"

    def text(self) -> str:
        said = f"{self.word}: {self.words} ({self.figures})."
        return said if self.holds else f"{said}\n  What to make of it: {self.otherwise}"

    def markdown(self) -> str:
        said = f"> {'✔' if self.holds else '✘'} **{self.word}:** {self.words} ({self.figures})."
        return said if self.holds else f"{said}  \n> *What to make of it:* {self.otherwise}"


def check(claim: str, holds: object, figures: str, otherwise: str) -> Claim:
    """A claim about this machine."""
    return Claim(claim, bool(holds), figures, otherwise)


@dataclass(frozen=True)
class Judgement:
    """The claims of one exercise, shown as text or as Markdown."""

    exercise: str
    claims: tuple[Claim, ...]

    def __repr__(self) -> str:
        return "\n".join(claim.text() for claim in self.claims)

    def _repr_markdown_(self) -> str:
        return "\n>\n".join(claim.markdown() for claim in self.claims)


@dataclass
class Grades:
    """All judgements so far, by exercise; judging an exercise again replaces what was said before."""

    judgements: dict[str, Judgement] = field(default_factory=dict)

    def judge(self, exercise: str, *claims: Claim) -> Judgement:
        """Keep the claims of an exercise, and show them."""
        self.judgements[exercise] = Judgement(exercise, claims)
        return self.judgements[exercise]

    def require(self, exercise: str, *claims: Claim) -> Judgement:
        """Like `judge`, but stop where a claim does not hold: nothing after it would mean anything."""
        judgement = self.judge(exercise, *claims)
        if wrong := [claim for claim in claims if not claim.holds]:
            raise NotRight(f"{wrong[0].words}: no ({wrong[0].figures}). {wrong[0].otherwise}")
        return judgement

    def __iter__(self) -> Iterator[tuple[str, Claim]]:
        for exercise, judgement in self.judgements.items():
            for claim in judgement.claims:
                yield exercise, claim

    def __repr__(self) -> str:
        seen = sum(claim.holds for _, claim in self)
        return f"{seen} of {len(list(self))} claims seen on this machine"

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {exercise} | {claim.words} | {'✔' if claim.holds else '✘'} {claim.word} |"
            for exercise, claim in self
        ]
        return "\n".join([f"**{self!r}.**", "", "| exercise | claim | |", "|---|---|---|", *rows])
