"""Half an hour of photos, pages, API and files that are no photos: what runs must take no more in the end."""

from __future__ import annotations

import pytest
from hard.visits import Visits
from support.accounting import Account, PhotoLoad, learn
from support.product import Product
from support.stack import SAMPLES, ResourceUse
from support.table import Keep

PHOTOS_PER_S = 3
VISITS_PER_S = 1
# What may lie between the middles of two thirds of the time and is no growth, in MiB and as a share.
MEMORY_MIB, MEMORY_SHARE = 10, 0.05
DESCRIPTORS = 6
THREADS = 3


@pytest.mark.timeout(4 * 3600)
def test_soak(product: Product, table: Keep, pytestconfig: pytest.Config) -> None:
    minutes: float = pytestconfig.getoption("--soak-minutes")
    photos = learn(product.url, [path.read_bytes() for path in SAMPLES])
    before = product.counts()
    with (
        ResourceUse(product.processes, every_s=min(10, minutes)) as watch,
        Visits(product.url, VISITS_PER_S) as visits,
        PhotoLoad(product.url, photos, PHOTOS_PER_S) as load,
    ):
        load.run_for(60 * minutes)
    account = Account((*load.account().attempts, *visits.attempts))

    memory = watch.growth(lambda size: size.memory_mib)
    descriptors = watch.growth(lambda size: size.descriptors)
    threads = watch.growth(lambda size: size.threads)
    held = {
        "the same processes": product.counts() == before and not product.strays(),
        **{f"memory of {kind}": b <= a * (1 + MEMORY_SHARE) + MEMORY_MIB for kind, (a, b) in memory.items()},
        **{f"descriptors of {kind}": b <= a + DESCRIPTORS for kind, (a, b) in descriptors.items()},
        **{f"threads of {kind}": b <= a + THREADS for kind, (a, b) in threads.items()},
    }
    figures = {}
    for unit, grown in (("MiB", memory), ("descriptors", descriptors), ("threads", threads)):
        for kind, (first, last) in grown.items():
            figures[f"{unit} of {kind} early"] = round(first, 1)
            figures[f"{unit} of {kind} late"] = round(last, 1)
    table(
        account.row(
            f"a soak of {minutes:g} minutes with photos, pages, API and broken files",
            seen="photos and pages are answered, broken files refused with the reason; the middle of the "
            "first and of the last third of the time after a tenth of it to warm up",
            held=held,
            figures=figures,
        )
    )
