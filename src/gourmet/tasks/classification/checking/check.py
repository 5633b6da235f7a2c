"""One check: find the pictures, ask about them, ask some again, compare with the network, measure."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gourmet.errors import UsageError
from gourmet.runtime.manifest import MANIFEST, sha256
from gourmet.serving.client import booked, statistics_now
from gourmet.systems import registry
from gourmet.systems.registry import UnknownSystem
from gourmet.tasks.checking import Wanted
from gourmet.tasks.classification.checking.asking import (
    Agreement,
    Asked,
    Served,
    ask_again,
    ask_all,
    compare,
    describe,
)
from gourmet.tasks.classification.checking.pictures import find
from gourmet.tasks.classification.checking.report import Report
from gourmet.tasks.system_parts import Stage, SystemParts


def check_pictures(wanted: Wanted, stage: Stage) -> Report:
    served = describe(wanted.url, wanted.model)
    name, data = served.info.name, wanted.data or _bundled(served)
    # A model that knows no batches takes one picture at a time, and none takes more than its most.
    wanted = replace(wanted, batch=min(wanted.batch, max(1, served.info.max_batch_size)))
    pictures = find(
        served.info.system, data, wanted.part, wanted.limit, missing_classes=wanted.missing_classes
    )
    asked = Asked.nothing_yet(len(pictures), len(served.labels))
    before = statistics_now(served.url, name)
    try:
        with stage("asking") as tick:
            ask_all(served, pictures, wanted, asked, tick)
    except KeyboardInterrupt:
        asked.stopped = True
    answered = len(asked.latencies_ms)
    counts = booked(served.url, name, before, lambda counted: counted.requests >= answered)
    again = None
    eager: Agreement | str = "stopped before" if asked.stopped else "no picture was answered"
    try:
        if answered and not asked.stopped:
            with stage("asking some again") as tick:
                again = ask_again(served, pictures, wanted, asked, tick)
            weights = wanted.weights or _weights(served, max(asked.versions), wanted)
            if isinstance(weights, Path):
                with stage("asking the network") as tick:
                    eager = compare(served, pictures, asked, weights, tick)
            else:
                eager = weights
    except KeyboardInterrupt:
        asked.stopped, eager = True, "stopped before"
    return Report(served, pictures, wanted, asked, counts, again, eager)


def _bundled(served: Served) -> Path:
    """The labelled pictures that the model's system brings along."""
    with suppress(UnknownSystem):  # its folder has nothing that trains it
        if found := SystemParts(served.info.system, registry.piece).training.bundled_data():
            return found[0]
    raise UsageError(
        f"{served.info.name!r} is a classifier, and {served.info.system} brings no pictures along: "
        "name some to ask about with --data"
    )


def _weights(served: Served, version: str, wanted: Wanted) -> Path | str:
    """The weights that the manifest of a served version names, if they are among the runs, or why not."""
    manifest = wanted.repository / served.info.name / version / MANIFEST
    runs = wanted.runs / served.info.system
    try:
        digest = json.loads(manifest.read_text(encoding="utf-8"))["training"]["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{manifest} does not name the weights that were exported: name them with --eager"
    for path in sorted(runs.glob("*.safetensors")):
        if sha256(path) == digest:
            return path
    return (
        f"the weights {digest[:12]}… that version {version} was exported from are not in {runs}: "
        "name them with --eager"
    )
