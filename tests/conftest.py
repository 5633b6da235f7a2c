"""Marks every test by the folder it lies in, so that a tier is a folder and nothing can be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

TIERS = {"unit", "served", "web", "containers"}
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(HERE).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
