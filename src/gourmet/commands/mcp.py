"""`gourmet mcp`: tools for an agent on this machine, over stdin and stdout (Model Context Protocol).

An agent gets the answers about photos, never their bytes, and no file that is not a photo is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final

import click

from gourmet.bulk.inputs import Photos
from gourmet.bulk.model_rows import GeneratedRows, PhotoRows
from gourmet.bulk.resumable_table import Row, answered
from gourmet.commands.classify import usual_model
from gourmet.commands.options import url_option
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.header import SUFFIXES
from gourmet.served.optional import optional
from gourmet.stack.connect import connect
from gourmet.systems import registry

_MAX_PHOTOS: Final = 200
_MAX_TEXTS: Final = 100
_INSTRUCTIONS: Final = (
    "Say what food photos on this machine show, and translate Russian into English. Repeat the certainty of "
    "an answer: one that is not sure is a guess."
)


@dataclass(frozen=True)
class ClassifiedPhoto:
    """`certainty` is sure, not sure or not food; with an `error` there is no answer."""

    path: str
    dish: str | None
    food_class: str | None
    probability: float | None
    certainty: str | None
    error: str | None


@dataclass(frozen=True)
class TranslatedText:
    """`certainty` is sure or not sure; a `warning` says what is doubtful."""

    text: str
    translation: str | None
    certainty: str | None
    warning: str | None
    error: str | None


@dataclass(frozen=True)
class DescribedModel:
    """A model that is ready to answer."""

    name: str
    version: str
    answers: str
    labels: list[str]


@click.command()
@url_option()
def mcp(url: str) -> None:
    """Offer classification and translation as tools to an agent that runs this command.

    It speaks the Model Context Protocol on stdin and stdout. Photos are read on this machine, and are sent to
    Triton only.

    \b
    {"mcpServers": {"gourmet": {"command": "gourmet", "args": ["mcp"]}}}
    """
    package = optional("mcp.server.mcpserver", "gourmet mcp", "mcp")
    tool_error = optional("mcp.server.mcpserver.exceptions", "gourmet mcp", "mcp").ToolError
    server = package.MCPServer("gourmet", instructions=_INSTRUCTIONS, log_level="WARNING")

    @contextmanager
    def errors_for_the_agent() -> Iterator[None]:
        try:
            yield
        except GourmetError as exc:
            raise tool_error(str(exc)) from exc

    def classify_photos(paths: list[str]) -> list[ClassifiedPhoto]:
        """Say which dish and which class of food each photo shows; a path is a photo or a folder."""
        photos = list(islice(_photos(paths), _MAX_PHOTOS + 1))
        if len(photos) > _MAX_PHOTOS:
            raise UsageError(f"more than {_MAX_PHOTOS} photos: name fewer, or call `gourmet classify --out`")
        with closing(PhotoRows(url, usual_model())) as model:
            return [_photo(row) for row in chain.from_iterable(answered(model, photos))]

    def translate(texts: list[str]) -> list[TranslatedText]:
        """Translate Russian texts, each of a few sentences, into English."""
        if len(texts) > _MAX_TEXTS:
            raise UsageError(f"{len(texts)} texts are too many for one call: send at most {_MAX_TEXTS}")
        with closing(GeneratedRows(url, "text", {}, model=None)) as model:
            return [_text(row) for row in chain.from_iterable(answered(model, texts))]

    def describe_models() -> list[DescribedModel]:
        """List the models that are ready, what each answers, and its labels."""
        systems = registry.load_all()
        with closing(connect(url)) as triton:
            infos = [triton.describe(name) for name in triton.ready_models()]
        return [
            DescribedModel(
                name=info.name,
                version=info.version,
                answers=systems[info.system].title,
                labels=list(getattr(systems[info.system], "labels", ())),
            )
            for info in infos
            if info.system in systems
        ]

    for tool in (classify_photos, translate, describe_models):
        server.add_tool(errors_for_the_agent()(tool))
    server.run()


def _photos(paths: Sequence[str]) -> Photos:
    """Return the photos; refuse other files, which a run on the command line reads as lists."""
    absolute = [str(Path(path).expanduser()) for path in paths]
    for path in absolute:
        if not Path(path).is_dir() and Path(path).suffix.lower() not in SUFFIXES:
            raise UsageError(
                f"{path} is not a photo or a folder: photos end in {', '.join(sorted(SUFFIXES))}"
            )
    return Photos(absolute)


def _photo(row: Row) -> ClassifiedPhoto:
    is_other = row.get("relevant") is False
    return ClassifiedPhoto(
        path=row["path"],
        dish=None if is_other else row.get("dish"),
        food_class=None if is_other else row["label"],
        probability=row["probability"],
        certainty=None if row["error"] else "not food" if is_other else _certainty(row["sure"]),
        error=row["error"],
    )


def _text(row: Row) -> TranslatedText:
    return TranslatedText(
        text=row["text"],
        translation=row["translation"],
        certainty=None if row["error"] else _certainty(row.get("sure")),
        warning=row["warning"],
        error=row["error"],
    )


def _certainty(sure: bool | None) -> str:
    return "sure" if sure else "not sure"
