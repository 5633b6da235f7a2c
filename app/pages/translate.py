"""The pages that stream translations, and /api/v1/translate for one text or several.

Every pair of languages has its own page: our translator, and each one that is described by data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from flask import Blueprint, Flask, Response, abort, request, url_for
from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from app.api import schemas
from app.api.openapi import operation
from app.api.schemas import Schema, TextAnswer
from app.api.texts import answer_fields, in_pieces, whole
from app.api.uploads import chosen_model, json_body, receiving
from app.models import Model
from app.services import NavigationEntry, Services
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest, ServingError, UnknownModel, for_visitor
from app.web.http import request_id, route_options, unstored
from app.web.messages import warning
from app.web.rate_limit import count_photos
from gourmet.contracts import GeneratedText, Generation
from gourmet.errors import GourmetError
from gourmet.systems.registry import load_all
from gourmet.systems.translator.contract import (
    MAX_CHARACTERS,
    SYSTEM,
    Translator,
    problem,
    sentences_of,
)
from gourmet.triton_client.deadline import Deadline

ABOUT: Final = SYSTEM.name
MAX_TEXTS: Final = 32
# The limit for all texts of a call, which holds one place in the queue while others wait.
MAX_CALL_SENTENCES: Final = 400
# Each character as \uXXXX, twice if it needs a surrogate pair.
_MAX_BYTES: Final = MAX_TEXTS * MAX_CHARACTERS * 12
_EXAMPLES: Final = 6


def _translators() -> dict[str, Translator]:
    return {name: system for name, system in load_all().items() if isinstance(system, Translator)}


def _only_translators(schema: dict[str, Any]) -> None:
    schema["enum"] = [SYSTEM.name, *(name for name in _translators() if name != SYSTEM.name)]


# Checked by the system, whose refusals say more.
_Text = Annotated[
    str, WithJsonSchema({"type": "string", "maxLength": MAX_CHARACTERS, "pattern": r"[^\s\x00]"})
]
_OPTIONS: Final = {
    "type": "object",
    "examples": [{"beams": 4}],
    "additionalProperties": False,
    "properties": {
        name: {"type": "integer", "minimum": smallest, "maximum": largest}
        for name, (smallest, largest, _) in SYSTEM.options.items()
    },
}


class TranslateRequest(schemas.Chosen):
    """One text, which can be streamed, or several."""

    model_config = ConfigDict(
        json_schema_extra=schemas.either("texts", "text", stream={"const": False})
        | {
            "not": {
                "description": "Only one beam can be streamed.",
                "required": ["stream", "options"],
                "properties": {"stream": {"const": True}, "options": {"required": ["beams"]}},
            }
        }
    )

    system: Annotated[str, Field(json_schema_extra=_only_translators)] | None = None
    """A translator; by default the one of `model`, else the Russian one."""
    texts: Annotated[list[_Text], Field(min_length=1, max_length=MAX_TEXTS)] | None = None
    text: _Text | None = None
    stream: bool = False
    options: Annotated[dict[str, schemas.Whole], WithJsonSchema(_OPTIONS)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_them(self) -> TranslateRequest:
        if (self.text is None) == (self.texts is None):
            raise ValueError("send either text or texts")
        if self.stream and self.text is None:
            raise ValueError("only a single text is streamed: send text, not texts")
        return self


class Translation(TextAnswer):
    """The translation of one text; `warning` says why it is doubtful."""


class Translations(Schema):
    """One translation for each text, in the order in which they were sent."""

    translations: list[Translation]
    model: schemas.ModelName
    timings_ms: schemas.GenerationTimings
    request_id: str


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    routes = Blueprint("translate", __name__)
    systems = {SYSTEM.name: SYSTEM, **_translators()}

    def shown(
        system: Translator,
        answer: GeneratedText | None = None,
        model: Model[Generation] | None = None,
        **context: Any,
    ) -> str:
        facts = answer_fields(model.info, answer) if answer and model else {}
        example_texts = dict.fromkeys(text.decode() for text in system.examples(_EXAMPLES, seed=0))
        return services.page(
            "translate.html",
            system,
            is_ours=system == SYSTEM,
            action=url_for("translate.translate_form", name=system.name),
            answer=facts,
            marked=_marked(answer, facts) if answer else (),
            examples={text: system.meanings[text] for text in example_texts},
            most_characters=MAX_CHARACTERS,
            early_warnings={key: warning(text) for key, text in system.early_warnings.items()},
            away=services.readiness[system.name].known_problem,
            **context,
        )

    @routes.get("/translate", defaults={"name": SYSTEM.name})
    @routes.get("/translate/<name>")
    def page(name: str) -> str:
        return shown(systems.get(name) or abort(404))

    @routes.post("/translate", defaults={"name": SYSTEM.name})
    @routes.post("/translate/<name>")
    @route_options(admitted="texts", charged=True)
    def translate_form(name: str) -> tuple[str, int]:
        """Translate the form's text without scripts, and show the page with the answer."""
        system = systems.get(name) or abort(404)
        request.max_content_length = _MAX_BYTES
        too_large = f"the text is too long: at most {MAX_CHARACTERS:,} characters"
        with receiving(too_large):
            text = request.form.get("text", "")
        try:
            if why := problem(text):
                raise BadRequest(why)
            if (foreign := system.foreign(text)) and not request.form.get("anyway"):
                return shown(system, text=text, foreign=foreign), 200
            deadline = deadline_of_request()
            model = generator.find("", deadline, name)
            (answer,), _ = whole(generator, model, [text.encode()], {}, deadline)
        except GourmetError as exc:
            shown_error = for_visitor(exc)
            return shown(system, text=text, problem=str(shown_error)), shown_error.status
        return shown(system, answer, model, text=text), 200

    def requested_model(fields: TranslateRequest, deadline: Deadline) -> Model[Generation]:
        """Find the translator that the request names, or the model of its system or of the default one."""
        chosen = chosen_model(fields.model or "", fields.version)
        if fields.system and fields.system not in systems:
            raise BadRequest(f"system is {fields.system[:50]!r}; allowed: {', '.join(systems)}")
        asks_configured = chosen[:1] in ("", "/")
        system = fields.system or (SYSTEM.name if asks_configured else "")
        model = generator.find(chosen, deadline, system)
        if not isinstance(model.system, Translator):
            raise UnknownModel(chosen, [settings.models[name] for name in systems])
        if not fields.stream:
            return model
        return generator.find_streaming(chosen, model.system.streaming_model, deadline, model.system.name)

    @services.api.post("/translate", endpoint="translate")
    @route_options(admitted="texts")
    @operation(
        answer=Translations,
        json=TranslateRequest,
        events=schemas.Generated,
        example={"text": "Я люблю чай."},
    )
    def translate() -> Response:
        """Translate the texts of the request, from Russian to English unless it names another pair.

        Send up to 32 `texts` of at most 400 sentences or lines together, or one `text`; `system` or `model`
        chooses another pair of languages. With `stream`, one text is answered by server-sent events: `piece`
        events as words come, then `done` with the whole, or `error`. Closing the connection ends the work. A
        text that does not look Russian is translated with a `warning`. So is one whose numbers, Latin letters
        or emoji are not in the translation. Show what is not `sure` as a rough guess.
        """
        expected = '{"texts": ["…"]} or {"text": "…", "stream": true}'
        fields = json_body(TranslateRequest, _MAX_BYTES, expected)
        texts = fields.texts if fields.texts is not None else [fields.text or ""]
        for index, text in enumerate(texts):
            if why := problem(text):
                raise BadRequest(f"texts.{index}: {why}" if fields.texts else why)
        if len(texts) > 1 and (sentences := sum(map(sentences_of, texts))) > MAX_CALL_SENTENCES:
            raise ServingError(
                "too_many_sentences",
                f"the texts have {sentences:,} sentences or lines together; at most {MAX_CALL_SENTENCES} are "
                "translated in one call: send fewer texts at a time",
            )
        count_photos(len(texts), "texts")
        deadline = deadline_of_request()
        model = requested_model(fields, deadline)
        if fields.stream:
            return in_pieces(generator, model, texts[0].encode(), fields.options, deadline)
        answers, timings = whole(
            generator, model, [text.encode() for text in texts], fields.options, deadline
        )
        translations = [Translation(**answer_fields(model.info, answer)) for answer in answers]
        name = schemas.ModelName(name=model.info.name, version=model.info.version)
        return unstored(
            Translations(translations=translations, model=name, timings_ms=timings, request_id=request_id())
        )

    app.register_blueprint(routes)
    return [
        NavigationEntry(
            "translate.page",
            "nav.translate" if system == SYSTEM else system.title,
            services.readiness[name],
            {"name": name},
            is_demo=system == SYSTEM,
        )
        for name, system in systems.items()
    ]


def _marked(answer: GeneratedText, facts: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the text in parts, each with True if the model is unsure of it."""
    sentences = facts["sentences"] or ()
    if sentences and all(sentence.sure is False for sentence in sentences):
        yield answer.text, False  # one line above says so
        return
    at = 0
    for span, sentence in zip(answer.sentences or (), sentences, strict=False):
        yield answer.text[at : span.begin], False
        yield sentence.text, sentence.sure is False
        at = span.end
    yield answer.text[at:], False
