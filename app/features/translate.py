"""The page that translates while one watches, and /api/v1/translate for one text or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from flask import Blueprint, Flask, Response, request
from pydantic import ConfigDict, Field, model_validator

from app.admission.queue import deadline_of_request
from app.admission.rate_limit import count_photos
from app.admission.uploads import receiving
from app.api import schemas, text_calls, whole_texts
from app.api.openapi import EVENTS, Operation, documented
from app.api.request_parsing import chosen_model, from_json, text_body
from app.api.schemas import Maybe, Schema
from app.api.services import NavigationEntry, Services
from app.core.errors import BadRequest, ServingError, for_visitor
from app.core.http import JSON, marked, request_id, unstored
from app.core.messages import starting_with, t
from gourmet.contracts import GeneratedText
from gourmet.systems.translator.contract import (
    EARLY_WARNINGS,
    MOST_CHARACTERS,
    OPTIONS,
    STREAMING_MODEL,
    SYSTEM,
    example_meanings,
    problem,
)

ABOUT: Final = SYSTEM.name
MOST_TEXTS: Final = 32
# Every character of every text as \uXXXX, and twice that where it takes two of them.
_MOST_BYTES: Final = MOST_TEXTS * MOST_CHARACTERS * 12
_EXAMPLES: Final = 6

# What `problem` refuses, but for half characters.
Text = Annotated[
    str,
    Field(
        examples=["Я люблю чай."], json_schema_extra={"maxLength": MOST_CHARACTERS, "pattern": r"[^\s\x00]"}
    ),
]
Texts = Annotated[
    list[Text], Field(min_length=1, max_length=MOST_TEXTS, examples=[["Я люблю чай.", "Он любит кофе."]])
]


class TranslateRequest(schemas.Chosen):
    """One text, which can be streamed, or several."""

    model_config = ConfigDict(
        json_schema_extra={
            **schemas.either("texts", "text", then={"stream": {"const": False}}),
            # The model that streams searches with a single beam.
            "not": {
                "required": ["stream", "options"],
                "properties": {"stream": {"const": True}, "options": {"required": ["beams"]}},
            },
        }
    )

    texts: Texts | None = None
    text: Text | None = None
    stream: bool = False
    options: dict[str, schemas.Whole] = Field(
        default_factory=dict,
        examples=[{"beams": 4}],
        json_schema_extra={
            "properties": {
                name: {"type": "integer", "minimum": least, "maximum": most}
                for name, (least, most, _) in OPTIONS.items()
            },
            "additionalProperties": False,
        },
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> TranslateRequest:
        if (self.text is None) == (self.texts is None):
            raise ValueError("send either text or texts")
        if self.stream and self.text is None:
            raise ValueError("only a single text is streamed: send text, not texts")
        return self


class Translation(Schema):
    """What one text says in English; `warning` where something about it is doubtful."""

    text: str
    tokens: int | Maybe = Field(default=None, ge=0)
    score: float | Maybe = None
    warning: str | Maybe = None


class Translations(Schema):
    """One translation for each text, in the order in which they were sent."""

    translations: list[Translation]
    model: schemas.ModelName
    timings_ms: schemas.GenerationTimings
    request_id: str


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    readiness = services.readiness[SYSTEM.name]
    routes = Blueprint("translate", __name__)
    meanings = example_meanings()
    shown_examples = [text.decode() for text in SYSTEM.examples(_EXAMPLES, seed=0)]

    def shown(answer: GeneratedText | None = None, **context: Any) -> str:
        return services.page(
            "translate.html",
            SYSTEM,
            answer=answer,
            examples={text: meanings[text] for text in shown_examples},
            early_warnings=EARLY_WARNINGS,
            most_characters=MOST_CHARACTERS,
            away=readiness.known_problem,
            script_texts=starting_with("js."),
            **context,
        )

    @routes.get("/translate")
    def page() -> str:
        return shown()

    @routes.post("/translate")
    @marked(admitted="texts", charged=True)
    def translate_form() -> tuple[str, int]:
        """Without a script: the page again, with the answer in it."""
        request.max_content_length = _MOST_BYTES
        too_large = f"the text is too long: at most {MOST_CHARACTERS:,} characters"
        with receiving(settings, too_large):
            text = request.form.get("text", "")
        try:
            if why := problem(text):
                raise BadRequest(why)
            deadline = deadline_of_request(settings.generate_deadline_s)
            model = generator.find("", deadline, SYSTEM.name)
            (answer,), _ = whole_texts.several(generator, model, [text.encode()], {}, deadline)
        except ServingError as exc:
            shown_error = for_visitor(exc)
            return shown(text=text, problem=str(shown_error)), shown_error.status
        return shown(answer, text=text), 200

    @services.api.post("/translate", endpoint="translate")
    @marked(admitted="texts")
    @documented(
        Operation(
            Translations,
            in_parts={EVENTS: (schemas.Piece, schemas.Error, schemas.Generated)},
            errors=text_calls.ERRORS,
            bodies={JSON: TranslateRequest},
            example={"text": SYSTEM.sample().decode()},
        )
    )
    def translate() -> Response:
        """These Russian texts in English.

        Send up to 32 as `texts`, or one as `text`. One with `stream` is answered by server-sent events:
        `piece` events as its words come, and at the end `done` with the whole, or `error`. Closing the
        connection ends the work on it. A text that does not look Russian is translated all the same, with a
        `warning`, as is one whose numbers, Latin letters or emoji are not in the translation.
        """
        body = text_body(settings, _MOST_BYTES)
        asked = from_json(TranslateRequest, body, '{"texts": ["…"]} or {"text": "…", "stream": true}')
        texts = asked.texts if asked.texts is not None else [asked.text or ""]
        for place, text in enumerate(texts):
            if why := problem(text):
                raise BadRequest(f"texts.{place}: {why}" if asked.texts else why)
        if settings.rate_limit:
            count_photos(app, len(texts), "texts")
        deadline = deadline_of_request(settings.generate_deadline_s)
        chosen = chosen_model(asked.model or "", asked.version)
        if asked.stream:
            model = generator.find_streaming(chosen, STREAMING_MODEL, deadline, SYSTEM.name)
            return text_calls.in_pieces(generator, model, texts[0].encode(), asked.options, deadline)
        model = generator.find(chosen, deadline, SYSTEM.name)
        answers, timings = whole_texts.several(
            generator, model, [text.encode() for text in texts], asked.options, deadline
        )
        translations = [_translation(answer) for answer in answers]
        name = schemas.ModelName(name=model.info.name, version=model.info.version)
        return unstored(
            Translations(translations=translations, model=name, timings_ms=timings, request_id=request_id())
        )

    app.register_blueprint(routes)
    return [NavigationEntry("translate.page", t("nav.translate"), readiness)]


def _translation(answer: GeneratedText) -> Translation:
    return Translation(
        text=answer.text, tokens=answer.tokens, score=answer.score, warning=answer.warning or None
    )
