"""The faults of scripts/mutants.txt still fit the code."""

from __future__ import annotations

import mutants


def test_each_fault_of_the_list_is_in_the_code_once_and_has_its_tests() -> None:
    faults = list(mutants.mutants())
    assert len(faults) >= 60
    for fault in faults:
        assert fault.applied_to(mutants.ROOT)
        assert fault.tests, fault
        assert all((mutants.ROOT / test).is_file() for test in fault.tests), fault
