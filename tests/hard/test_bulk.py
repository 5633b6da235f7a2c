"""`gourmet classify` beside a plain loop that posts one photo after another to the API, in turns."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

from support.life import gourmet
from support.product import Product
from support.table import Keep, Row
from support.web_app import Site

from gourmet.measure.stats import ratio

PHOTOS = 2_000
TURNS = 3


def test_a_table_of_photos_is_made_faster_than_by_a_plain_loop_of_the_api(
    product: Product, food_photos: Path, tmp_path: Path, table: Keep
) -> None:
    with zipfile.ZipFile(food_photos / "test.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")][:PHOTOS]
        archive.extractall(tmp_path, names)
    photos = sorted(tmp_path / name for name in names)
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(map(str, photos)))
    site, rates, wrong = Site(product.up.port), ([], []), 0

    def by_the_command(turn: int) -> list[str | None]:
        out = tmp_path / f"{turn}.jsonl"
        gourmet("classify", listed, "--out", out, "--url", product.triton_url)
        return [json.loads(line)["answer"] for line in out.read_text().splitlines()]

    def by_a_loop(turn: int) -> list[str | None]:
        return [site.predict(path.read_bytes()).json["label"] for path in photos]

    for turn in range(TURNS):
        found = {}
        for way in ((0, 1), (1, 0))[turn % 2]:
            began = time.monotonic()
            found[way] = (by_the_command, by_a_loop)[way](turn)
            rates[way].append(PHOTOS / (time.monotonic() - began))
        wrong += sum(one != other for one, other in zip(found[0], found[1], strict=True))
    times = ratio(*rates)
    command, loop = ([f"{rate:.0f}" for rate in each] for each in rates)
    table(
        Row(
            "a table of 2,000 photos by `gourmet classify`, against a loop of the API",
            2 * TURNS * PHOTOS,
            2 * TURNS * PHOTOS - wrong,
            f"{', '.join(command)} photos a second against {', '.join(loop)}",
            times.value >= 1.5 and not wrong,
            TURNS,
            wrong={"another answer": wrong} if wrong else {},
            figures={"times": round(times.value, 2), "low": times.low or 0.0, "high": times.high or 0.0},
        )
    )
