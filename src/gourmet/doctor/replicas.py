"""Whether several Tritons serve the same: models, versions and configs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gourmet.client.config_summary import summary
from gourmet.doctor.findings import Finding, ok, warn
from gourmet.errors import GourmetError
from gourmet.serving.connect import connect

Served = dict[str, tuple[str, dict[str, Any]]]


def alike(urls: Sequence[str]) -> Iterator[Finding]:
    """Each is held against the first; one that cannot be asked has its line elsewhere."""
    known: dict[str, Served] = {}
    for url in urls:
        try:
            known[url] = _served(url)
        except GourmetError:
            continue
    first, *others = known or {"": {}}
    differ = False
    for url in others:
        for name in sorted(known[first].keys() | known[url].keys()):
            here, there = known[first].get(name), known[url].get(name)
            if here == there:
                continue
            differ = True
            yield warn(
                f"{name} is {_words(there)} at {url}, and {_words(here)} at {first}",
                f"where no change is under way, have all serve what is on disk "
                f"(`gourmet config {name} --reset --url {','.join(known)}`)",
            )
    if len(known) > 1 and not differ:
        yield ok(f"{len(known)} Tritons serve the same models, versions and configs")


def _served(url: str) -> Served:
    with connect(url) as triton:
        ready: dict[str, list[str]] = {}
        for entry in triton.versions():
            if entry.get("state") == "READY":
                ready.setdefault(entry["name"], []).append(entry["version"])
        return {name: (", ".join(sorted(all_)), triton.config(name)) for name, all_ in ready.items()}


def _words(served: tuple[str, dict[str, Any]] | None) -> str:
    return f"version {served[0]} ({summary(served[1])})" if served else "not ready"
