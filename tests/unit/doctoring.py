"""One check of `gourmet doctor` by itself."""

from __future__ import annotations

import pytest

from gourmet.doctor import examination
from gourmet.doctor.findings import Finding, Subject


def findings(check: str, subject: Subject) -> list[Finding]:
    """What one check says, as a run through all of them would."""
    only = {check: examination.CHECKS[check]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "CHECKS", only)
        return [finding for _, finding in examination.examine(subject)]


def said(check: str, subject: Subject, level: str) -> str:
    """The only line of that level."""
    (found,) = [finding for finding in findings(check, subject) if finding.level == level]
    return str(found)
