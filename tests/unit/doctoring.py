"""One check of `gourmet doctor` by itself."""

from __future__ import annotations

import pytest

from gourmet.commands import doctor
from gourmet.doctor.findings import Examined, Finding


def findings(check: str, subject: Examined) -> list[Finding]:
    """What one check says, as a run through all of them would."""
    only = {check: doctor.CHECKS[check]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "CHECKS", only)
        return [finding for _, finding in doctor.examine(subject)]


def said(check: str, subject: Examined, level: str) -> str:
    """The only line of that level."""
    (found,) = [finding for finding in findings(check, subject) if finding.level == level]
    return str(found)
