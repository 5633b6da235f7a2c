"""The faults of scripts/mutants.txt still fit the code."""

from __future__ import annotations

import mutants


def test_each_fault_of_the_list_is_in_the_code_once_and_has_its_tests() -> None:
    faults, stale = list(mutants.mutants()), list[str]()
    assert len(faults) >= 60
    for fault in faults:
        try:
            fault.applied_to(mutants.ROOT)
        except (OSError, ValueError) as exc:
            stale.append(str(exc))
        assert fault.tests, fault
        assert all((mutants.ROOT / test).is_file() for test in fault.tests), fault
    assert not stale, "\n".join(stale)
