"""`gourmet canary`: how a version does that is tried beside the one that serves, and its end."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from prometheus_client.parser import text_string_to_metric_families

from gourmet.commands.options import alone_in, asked_stack, send_option, serving_url, to_option, url_option
from gourmet.commands.rollback import go_back
from gourmet.contracts import Canary
from gourmet.errors import GourmetError
from gourmet.reports.table import columns

_WITHIN_S: Final = 10.0
# Of all of the app's metrics.
_MOST_BYTES: Final = 4 << 20
_PREFIX: Final = "web_canary_"
_Counts = Mapping[tuple[str, ...], float]


@click.command()
@click.argument("action", type=click.Choice(["status", "promote", "abandon"]))
@click.argument("name", metavar="SYSTEM-OR-MODEL")
@to_option
@url_option(
    "Switch this Triton over, too.  [default: the running stack, if it serves --to]",
    required=False,
)
@click.option("--web", help="Ask the web app at this address what it saw.  [default: the running stack's]")
@send_option
def canary(action: str, name: str, models: Path, url: str | None, web: str | None, send: bool) -> None:
    """End what `gourmet deploy --canary` or --shadow began, or show how it goes.

    \b
    status   show what the web app counted for both versions, and whether it abandoned the new one
    promote  have the new version answer all requests, with its own config
    abandon  remove the new version, as `gourmet rollback` does
    """
    from gourmet.commands.load_and_ask import load_and_ask, served_as_before
    from gourmet.deploying.canary import promote, tried

    if action == "status":
        stack = asked_stack()
        counts = _counted(web or (stack.web_url if stack else ""))
        for model, found in tried(models, name).items():
            click.echo(_said(model.name, found, counts))
        return
    with alone_in(models):
        chosen, triton = tried(models, name), url or serving_url(models)
        if action == "abandon":
            go_back(list(chosen), triton, send=send)
            return
        with served_as_before(triton, list(chosen), send=send):
            promote(
                list(chosen),
                lambda model: click.echo(load_and_ask(triton, model, send=send)) if triton else None,
            )
    for model, found in chosen.items():
        click.echo(f"{model.name}: version {found.new} serves alone, version {found.old} is kept")


def _said(model: str, canary: Canary, counts: _Counts) -> str:
    def of(what: str, version: str) -> dict[str, int]:
        mine = what, model, version, canary.began
        return {key[4]: int(value) for key, value in counts.items() if key[:4] == mine}

    kind = f"a shadow of {canary.old}" if canary.is_shadow else f"a canary beside {canary.old}"
    lines = [f"{model}: version {canary.new} is {kind}, {100 * canary.share:g}% since {canary.began}"]
    outcomes = ("answered", "failed", "away")
    rows: list[tuple[str, ...]] = [("version", *outcomes)]
    for version in (canary.old, canary.new):
        found = of("requests", version)
        rows.append((version, *(str(found.get(each, 0)) for each in outcomes)))
    compared = of("compared", canary.new)
    alike = [f"{compared.get(each, 0)} {each}" for each in ("same", "different", "failed", "dropped")]
    lines += [columns(rows), f"compared: {', '.join(alike)}"]
    if differ := Counter(of("differences", canary.new)).most_common(5):
        lines.append(
            f"different where {canary.old} says: {', '.join(f'{label} {times}' for label, times in differ)}"
        )
    if reasons := of("abandoned", canary.new):
        lines.append(
            f"abandoned by its watch: {', '.join(reasons)}; remove it by `gourmet canary abandon {model}`"
        )
    return "\n".join(lines)


def _counted(web: str) -> _Counts:
    """What an app counted of canaries, by its last words and the values of its labels."""
    if not web:
        click.echo("no web app of this machine asks it: name one with --web", err=True)
        return {}
    address = web if "://" in web else f"http://{web}"
    try:
        with urllib.request.urlopen(f"{address}/metrics", timeout=_WITHIN_S) as answer:
            text = answer.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError) as exc:
        raise GourmetError(f"no metrics of a web app at {address} ({exc}): name it with --web") from exc
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name.startswith(_PREFIX) else ():
            labels = dict(sample.labels)
            which = [labels.pop(name) for name in ("model", "version", "began")]
            found[family.name.removeprefix(_PREFIX), *which, *labels.values()] = sample.value
    return found
