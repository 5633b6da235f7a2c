"""Words that new users stumbled over do not come back, and what is hardly seen has a contrast."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where people read them: pages, reports, terminals and the API's document.
SHOWN = [
    path
    for folder, kinds in (("app", "py html js toml"), ("src", "py html toml"))
    for kind in kinds.split()
    for path in (ROOT / folder).rglob(f"*.{kind}")
]
STUMBLED_OVER = (
    *("Clear answers", "Forget these", "HEIC is not read here", '"something else"', "so that it was warm"),
    *("Tells what is on a photo", "On which regions of this photo", "Who closes the connection"),
    *("differences between Triton", "Measured and not reported", "One line an arm", " rows a batch}"),
    *("of {threads} threads", "as short a p95", "Say Russian texts", "loop is turned", 'words a second"'),
    *("The classifier is", "The classifier does not"),
)


def test_words_that_nobody_understood_do_not_come_back() -> None:
    text = {path: path.read_text(encoding="utf-8") for path in SHOWN}
    assert len(text) > 200
    found = [(words, path.name) for path, said in text.items() for words in STUMBLED_OVER if words in said]
    assert found == []


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_a_placeholder_has_the_contrast_of_a_text(place: int) -> None:
    """Browsers' own grey had 3.5:1 on dark."""
    style = (ROOT / "app" / "static" / "style.css").read_text()
    assert re.search(r"::placeholder \{ color: var\(--soft\); opacity: 1; \}", style)
    soft, card = (re.findall(rf"--{name}: (#\w{{6}});", style)[place] for name in ("soft", "card"))
    lighter, darker = sorted((luminance(soft), luminance(card)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_the_folder_of_corrections_that_the_readme_names_is_none_that_git_would_add() -> None:
    folder = re.search(r"KEEP_CORRECTIONS=(\S+) make up", (ROOT / "README.md").read_text())
    assert folder is not None
    assert f"/{folder[1]}/" in (ROOT / ".gitignore").read_text().splitlines()
