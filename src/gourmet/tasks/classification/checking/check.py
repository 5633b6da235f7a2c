"""One check: find the pictures, ask about them, ask some again, compare with the network, measure."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gourmet.errors import UsageError
from gourmet.runtime.manifest import MANIFEST, sha256
from gourmet.serving.statistics import booked, statistics_now
from gourmet.systems.registry import UnknownSystem
from gourmet.tasks.checking import Stopping, Wanted
from gourmet.tasks.classification.checking.batch_consistency import Again, ask_again
from gourmet.tasks.classification.checking.pictures import Pictures, find
from gourmet.tasks.classification.checking.report import Report, quality
from gourmet.tasks.classification.checking.requests import Asked, ask_all
from gourmet.tasks.classification.checking.served import Served, describe
from gourmet.tasks.furniture import Stage

if TYPE_CHECKING:  # it imports torch, which a check without weights does not need
    from gourmet.tasks.classification.checking.reference_comparison import Agreement


def check(wanted: Wanted, stage: Stage, stopping: Stopping) -> Report:
    """Check a served model; `stopping` is asked often, and turning true ends the check early."""
    served = describe(wanted.url, wanted.model)
    info, data = served.info, wanted.data or _bundled(served)
    # A model that knows no batches takes one picture at a time, and none takes more than its most.
    options = replace(wanted.options, batch=min(wanted.options.batch, max(1, info.max_batch_size)))
    pictures = find(
        served.info.system, data, wanted.part, wanted.limit, missing_classes=wanted.missing_classes
    )
    before = statistics_now(served.url, served.info.name)
    with stage("asking") as tick:
        asked = ask_all(
            served,
            pictures,
            options,
            lambda done, rate: tick(done / len(pictures), f"{done}/{len(pictures)} · {rate:.0f}/s"),
            stopping,
        )
    answered = len(asked.latencies_ms)
    counts = booked(served.url, served.info.name, before, lambda counted: counted.requests >= answered)
    again = _again(served, pictures, asked, stage, stopping)
    eager, no_eager = _eager(served, pictures, asked, wanted, stage, stopping)
    asked.stopped = asked.stopped or stopping()
    return Report(
        served=served,
        pictures=pictures,
        options=options,
        asked=asked,
        counted=counts,
        again=again,
        eager=eager,
        no_eager=no_eager,
        quality=quality(served, pictures, asked),
        min_top1=wanted.min_top1,
    )


def _bundled(served: Served) -> Path:
    """The labelled pictures that the model's system brings along."""
    from gourmet.tasks.furniture import training

    with suppress(UnknownSystem):  # its folder has nothing that trains it
        if found := training(served.info.system).bundled_data():
            return found[0]
    raise UsageError(
        f"{served.info.name!r} is a classifier, and {served.info.system} brings no pictures along: "
        "name some to ask about with --data"
    )


def _again(
    served: Served, pictures: Pictures, asked: Asked, stage: Stage, stopping: Stopping
) -> Again | None:
    if asked.stopped or not asked.answered.any():
        return None
    with stage("asking some again") as tick:
        return ask_again(served, pictures, asked, tick, stopping)


def _eager(
    served: Served,
    pictures: Pictures,
    asked: Asked,
    wanted: Wanted,
    stage: Stage,
    stopping: Stopping,
) -> tuple[Agreement | None, str]:
    """The comparison with the network, or why there is none."""
    if stopping() or not asked.answered.any():
        return None, "stopped before" if stopping() else "no picture was answered"
    weights, why = wanted.weights, ""
    if weights is None:
        version = max(asked.versions, default=served.info.version)
        weights, why = _weights_of(served, version, wanted.repository, wanted.runs)
    if weights is None:
        return None, why
    from gourmet.tasks.classification.checking.reference_comparison import compare

    with stage("asking the network") as tick:
        found = compare(served, pictures, asked, weights, tick, stopping)
    return found, "" if found else "stopped before"


def _weights_of(served: Served, version: str, repository: Path, runs: Path) -> tuple[Path | None, str]:
    """The weights that the manifest of a served version names, if they are among `runs`, or why not."""
    manifest = repository / served.info.name / version / MANIFEST
    try:
        digest = json.loads(manifest.read_text(encoding="utf-8"))["training"]["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"{manifest} does not name the weights that were exported: name them with --eager"
    for path in sorted((runs / served.info.system).glob("*.safetensors")):
        if sha256(path) == digest:
            return path, ""
    return None, (
        f"the weights {digest[:12]}… that version {version} was exported from are not in "
        f"{runs / served.info.system}: name them with --eager"
    )
