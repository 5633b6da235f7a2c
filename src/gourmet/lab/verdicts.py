"""What a reader should have seen, checked on their machine: each claim holds, or is explained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gourmet.errors import GourmetError


class NotRight(GourmetError):
    """Something is wrong without which the rest of the notebook means nothing."""


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds here, the figures that say so, and what to make of it if it does not."""

    claim: str
    holds: bool
    figures: str
    otherwise: str

    @property
    def word(self) -> str:
        return "seen here" if self.holds else "NOT seen here"

    def text(self) -> str:
        said = f"{self.word}: {self.claim} ({self.figures})."
        return said if self.holds else f"{said}\n  What to make of it: {self.otherwise}"

    def markdown(self) -> str:
        said = f"> {'✔' if self.holds else '✘'} **{self.word}:** {self.claim} ({self.figures})."
        return said if self.holds else f"{said}  \n> *What to make of it:* {self.otherwise}"


def check(claim: str, holds: object, figures: str, otherwise: str) -> Verdict:
    """A claim about this machine."""
    return Verdict(claim, bool(holds), figures, otherwise)


@dataclass(frozen=True)
class Judgement:
    """The verdicts of one exercise, shown as text or as Markdown."""

    exercise: str
    verdicts: tuple[Verdict, ...]

    def __repr__(self) -> str:
        return "\n".join(verdict.text() for verdict in self.verdicts)

    def _repr_markdown_(self) -> str:
        return "\n>\n".join(verdict.markdown() for verdict in self.verdicts)


@dataclass
class Grades:
    """All judgements so far, by exercise; judging an exercise again replaces what was said before."""

    judgements: dict[str, Judgement] = field(default_factory=dict)

    def judge(self, exercise: str, *verdicts: Verdict) -> Judgement:
        """Keep the verdicts of an exercise, and show them."""
        self.judgements[exercise] = Judgement(exercise, verdicts)
        return self.judgements[exercise]

    def require(self, exercise: str, *verdicts: Verdict) -> Judgement:
        """Like `judge`, but stop where a claim does not hold: nothing after it would mean anything."""
        judgement = self.judge(exercise, *verdicts)
        if wrong := [verdict for verdict in verdicts if not verdict.holds]:
            raise NotRight(f"{wrong[0].claim}: no ({wrong[0].figures}). {wrong[0].otherwise}")
        return judgement

    def __iter__(self) -> Iterator[tuple[str, Verdict]]:
        for exercise, judgement in self.judgements.items():
            for verdict in judgement.verdicts:
                yield exercise, verdict

    def __repr__(self) -> str:
        seen = sum(verdict.holds for _, verdict in self)
        return f"{seen} of {len(list(self))} claims seen on this machine"

    def _repr_markdown_(self) -> str:
        rows = [
            f"| {exercise} | {verdict.claim} | {'✔' if verdict.holds else '✘'} {verdict.word} |"
            for exercise, verdict in self
        ]
        return "\n".join([f"**{self!r}.**", "", "| exercise | claim | |", "|---|---|---|", *rows])
