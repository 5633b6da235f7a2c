"""Examples through a model that generates, several at a time: for the verbs that make texts of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet.bulk.engines import Engine, asking
from gourmet.bulk.generated import GeneratedRows, Generating
from gourmet.bulk.run import AskRows, HowMany
from gourmet.commands.bulk_options import asked_model
from gourmet.contracts import ExampleKind, Generation, Options
from gourmet.errors import UsageError
from gourmet.systems import registry

# At a time: enough for the served loop to be full.
_REQUESTS: Final = 2
_ANSWERS_WITHIN_S: Final = 600.0


@dataclass(frozen=True)
class GeneratingRun:
    """How rows are asked for, and what they have."""

    made: GeneratedRows
    ask: AskRows
    how: HowMany


def system_for(kind: ExampleKind, asked: str | None = None, of_model: str = "") -> Generation:
    """The system that is `asked` for, of those whose models answer such examples with a text.

    Else the one that a model says it is `of_model`, or the only one that is code.
    """
    found = {
        name: each
        for name, each in registry.load_all().items()
        if isinstance(each, Generation) and each.example_kind == kind
    }
    ours = [name for name in found if not registry.is_data(name)]
    name = asked or (of_model if of_model in found else ours[0] if len(ours) == 1 else "")
    if name not in found:
        raise UsageError(
            f"--system {name or '…'}: those that answer a {kind} with a text are {', '.join(found)}"
        )
    return found[name]


@contextmanager
def generator(
    kind: ExampleKind,
    made: str,
    options: Options,
    *,
    system: str | None = None,
    model: str | None,
    url: str,
    via: str,
    engine: Engine,
    repositories: Iterable[Path],
    together: int,
    requests: int,
) -> Iterator[GeneratingRun]:
    """Of a `model`, or that of a `system`; what it says is the column `made`.

    So many inputs are in a request, `together`, and so many `requests` in what another process is given.
    """
    name = model or system_for(kind, system).default_model
    source = asked_model(name, url, via, repositories, _ANSWERS_WITHIN_S)
    with closing(source.open()) as asked:
        whose = system_for(kind, system, asked.info.system).name
        work = Generating(source, whose, made, tuple(options.items()), requests)
        rows = work.of(asked)
        how = HowMany(together if asked.info.max_batch_size else 1, _REQUESTS)
        with asking(work, rows, engine, how) as (ask, how):
            yield GeneratingRun(rows, ask, how)
