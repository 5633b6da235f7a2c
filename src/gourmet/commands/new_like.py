"""`gourmet new --like`: a checkpoint becomes a system, such as another pair of languages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click

from gourmet import repository
from gourmet.commands.deploy import deploy
from gourmet.commands.options import asked_stack, serving_url
from gourmet.commands.running import tell_web, unload
from gourmet.errors import GourmetError, UsageError
from gourmet.runtime.files import HOME_ENV
from gourmet.runtime.reading import in_short, read_text
from gourmet.systems import described, folders, registry

_EXAMPLES: Final = 32
_CARD: Final = """# {title}

Translates `{source}` into `{target}`.

- network: that of `{checkpoint}`, served like {like}
- trained on: say on what, under which licence, and what it does not know
- how right it is: `gourmet check {name} --data …` measures it; write down here what it says
- meant for: say for what, and for what not
"""


def new_like(
    like: str | None,
    name: str,
    checkpoint: str,
    languages: str | None,
    sentences: Path | None,
    title: str | None,
    models: Path,
    url: str | None,
    *,
    fp32: bool,
    send: bool,
) -> None:
    """Make the system `name` and deploy its models; if a step fails, remove everything."""
    if like not in registry.patterns():
        raise UsageError(f"--like {like or '…'}: a checkpoint can be like {', '.join(registry.patterns())}")
    source, comma, target = (languages or "").partition(",")
    if not comma or not sentences:
        raise UsageError(
            "add --languages, such as de,en, and --data, a file with a sentence to translate on each line"
        )
    check_free(name, [models / name, models / f"{name}_stream"])
    title = title or registry.usual_title(name)
    about = {
        "like": like,
        "title": title,
        "languages": [source.strip(), target.strip()],
        "examples": _examples(sentences),
    }
    folder, triton = folders()[1] / name, url or serving_url(models)
    origin = Path(checkpoint).name if Path(checkpoint).exists() else checkpoint
    card = _CARD.format(title=title, source=source, target=target, checkpoint=origin, like=like, name=name)
    with new_folder(folder) as (undo, put_in_place):
        described.write(aside(folder), about, {"checkpoint": origin})
        (aside(folder) / described.MODEL_CARD).write_text(card, encoding="utf-8")
        put_in_place()
        undo.callback(_take_away, [models / name, models / f"{name}_stream"], triton)
        deploying = {"name": name, "models": models, "checkpoint": checkpoint, "fp32": fp32}
        click.get_current_context().invoke(deploy, **deploying, url=url, send=send)
    tell_web(name)
    stack = asked_stack()
    web = (stack and stack.web_url) or "http://localhost:5000"
    click.echo(f"{folder}: its description and its model card\n\nNext:")
    if not triton:
        click.echo("  gourmet up")
    click.echo(f"  {web}/translate/{name}     its page\n  gourmet translate --system {name} TEXT")


def check_free(name: str, models: Sequence[Path]) -> None:
    """Raise if a model of this name exists: Triton accepts each name once in all of its repositories."""
    for model in models:
        for folder in (model, repository.DEFAULT / model.name):
            if folder.exists():
                raise UsageError(f"{folder} is there already: choose another name than {name!r}")


def aside(folder: Path) -> Path:
    """Return the path where a system's folder is made, under a name that no system has."""
    return folder.with_name(f".{folder.name}.part")


@contextmanager
def new_folder(folder: Path) -> Iterator[tuple[ExitStack, Callable[[], None]]]:
    """Make the folder `aside`; yield the steps to undo if the block fails, and the move into place."""
    part = aside(folder)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, part, ignore_errors=True)
        try:
            part.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise UsageError(
                f"{part.parent} cannot be written ({exc.strerror}): {HOME_ENV} names another"
            ) from exc

        def put_in_place() -> None:
            part.rename(folder)
            undo.callback(shutil.rmtree, folder)

        yield undo, put_in_place
        undo.pop_all()


def _examples(sentences: Path) -> list[str]:
    """Choose sentences evenly from the whole file; of lines with tabs, the first column."""
    try:
        lines = read_text(sentences).splitlines()
    except (OSError, ValueError) as exc:
        raise UsageError(f"--data {sentences} is not a file of texts: {in_short(exc)}") from exc
    texts = list(dict.fromkeys(text for line in lines if (text := line.partition("\t")[0].strip())))
    if not texts:
        raise UsageError(f"--data {sentences} has no sentence in it: give one on each line")
    return texts[:: max(1, len(texts) // _EXAMPLES)][:_EXAMPLES]


def _take_away(models: Sequence[Path], triton: str | None) -> None:
    for model in filter(Path.exists, models):
        with contextlib.suppress(GourmetError):
            unload(model.name, triton)
        shutil.rmtree(model)
