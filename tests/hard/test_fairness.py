"""One greedy client of each kind beside an honest one, which is served nearly as if it were alone."""

from __future__ import annotations

import pytest
from support import greedy
from support.product import Product
from support.table import Keep, TableRow

pytestmark = pytest.mark.timeout(900)
SECONDS = 15.0
# How much later the honest one may be answered, by the 95th percentile, and how many of its requests.
TIMES, SHARE = 3.0, 0.95


@pytest.mark.parametrize("kind", greedy.KINDS)
def test_who_asks_most_leaves_the_others_their_turn(product: Product, table: Keep, kind: str) -> None:
    port, own = product.up.port, greedy.requests(kind)[1]
    greedy.honest(port, own, 2)
    calm = greedy.honest(port, own, SECONDS)
    with greedy.beside(port, kind):
        found = greedy.honest(port, own, SECONDS)
    share, times = len(found.seconds) / found.asked, found.p95_s / calm.p95_s
    failed = [
        name for name, held in {"its time": times <= TIMES, "its share": share >= SHARE}.items() if not held
    ]
    table(
        TableRow(
            tried=f"a greedy client beside an honest one: {kind}",
            requests=found.asked,
            answered=len(found.seconds),
            refused={"refused": found.asked - len(found.seconds)} if share < 1 else {},
            seen="the honest one is answered; of its times:",
            survived=not failed,
            planned=f"not held: {', '.join(failed)}" if failed else "",
            figures={
                "usual p95 ms": round(calm.p95_s * 1000, 1),
                "p95 ms meanwhile": round(found.p95_s * 1000, 1),
                "times as long": round(times, 2),
            },
        )
    )
