"""The OpenAPI 3.1 document, made from the app's routes and the types of their requests and answers.

A view declares these types with `operation`. The first line of its docstring is the summary; the rest is the
description. The descriptions of fields are the docstrings below them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from flask import Flask
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from app.api.schemas import AllFailed, Chosen, Error, Piece, Schema
from app.web.errors import STATUSES
from app.web.http import API, JSON, options_of_route

View = TypeVar("View", bound=Callable[..., Any])
Document = dict[str, Any]

_ABOUT: Final = (
    "Classifies photos, translates texts and describes photos with the models that Triton serves. Every "
    "answer has an `X-Request-ID`: the request's own if it has up to 64 letters, digits and any of `. _ : -` "
    "only."
)
_KEY: Final = "A key of API_KEYS, if the operator has set any"
_RETRY: Final = {
    "Retry-After": {"description": "Seconds until another try is useful", "schema": {"type": "integer"}}
}
_PHOTO: Final = {
    "type": "string",
    "format": "binary",
    "contentMediaType": "application/octet-stream",
    "minLength": 1,
}
# Codes that no answer has: nobody reads the first, and /api/v1/health reports the second with status 200.
_UNSEEN: Final = ("client_left", "sample_unusable")
_HTML: Final = {"text/html": {"schema": {"type": "string"}}}


def parameter(description: str, *values: str, required: bool = False, **schema: Any) -> Document:
    """Describe a parameter of the query; `values` are the allowed ones, if there are few."""
    enum = {"enum": list(values)} if values else {}
    needed = {"required": True} if required else {}
    return {
        "in": "query",
        "description": description,
        "schema": {"type": "string", **enum, **schema},
        **needed,
    }


MODEL: Final = {"model": parameter("A model that is ready; by default the configured one")}
VERSION: Final = {"version": parameter("A version of the model that serves; by default the newest")}
INSIDE: Final = {
    "inside": parameter(
        "`1` adds the milliseconds in Triton's queue and in the model; it needs two extra requests to Triton",
        "1",
    )
}


@dataclass(frozen=True)
class Operation:
    """What a view takes and answers."""

    answer: type[Schema] | None = None
    json: type[Schema] | None = None  # the body as JSON
    max_photos: int = 0  # in a form; a photo may be the whole body if `json` may have one too
    parameters: Mapping[str, Document] = field(default_factory=dict)
    each_fails: bool = False  # each photo has a result or an error of its own
    events: type[Schema] | None = None  # the last event of a streamed answer
    lines: tuple[type[Schema], ...] = ()
    html: bool = False  # for browsers
    also: tuple[int, ...] = ()  # further statuses
    example: Any = None  # a body
    example_answer: Any = None

    @property
    def types(self) -> set[type[Schema]]:
        return {*self.lines, *filter(None, (self.answer, self.json, self.events))}


def operation(**parts: Any) -> Callable[[View], View]:
    """Document the view; parameters of the query that are not declared are refused."""

    def add(view: View) -> View:
        described = Operation(**parts)
        view.operation = described  # type: ignore[attr-defined]
        view.parameters = tuple(described.parameters)  # type: ignore[attr-defined]
        return view

    return add


def document(app: Flask) -> Document:
    """Describe every route of `app` whose view declares an operation."""
    views: list[tuple[str, str, Any, str]] = [
        (rule.rule, method.lower(), view, rule.endpoint)
        for rule in app.url_map.iter_rules()
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
        if hasattr(view := app.view_functions[rule.endpoint], "operation")
    ]
    # The order of the page. Readers look for `classify` first.
    views.sort(key=lambda view: (view[0] != f"{API}classify", not view[0].startswith(API), view[0]))
    responses: Document = {}
    paths: Document = {}
    for path, method, view, endpoint in views:
        paths.setdefault(path, {})[method] = _operation(path, method, view, endpoint, responses)
    types: set[type[Schema]] = {AllFailed, Error, Piece}
    types.update(*(view.operation.types for *_, view, _ in views))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "GourmetGram",
            "version": "1.0.0",
            "description": _ABOUT,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": _KEY},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same key"},
            },
            "responses": dict(sorted(responses.items())),
            "schemas": _schemas(types),
        },
    }


def _operation(path: str, method: str, view: Any, endpoint: str, responses: Document) -> Document:
    """Describe an operation, and add its errors to `responses`."""
    described: Operation = view.operation
    options = options_of_route(view)
    summary, _, text = (inspect.getdoc(view) or "").partition("\n")
    made: Document = {"operationId": endpoint.replace(".", "_"), "summary": summary.rstrip(".")}
    if text := " ".join(text.split()):
        made["description"] = text
    in_api = path.startswith(API) and not options.open
    if not in_api:
        made["security"] = []
    if described.parameters:
        made["parameters"] = [{"name": name, **rest} for name, rest in described.parameters.items()]
    if content := _body(described):
        made["requestBody"] = {"required": True, "content": content}
    statuses = {400, *described.also}
    statuses |= {401} if in_api else set()
    statuses |= {429, 502, 503, 504} if in_api or options.charged else set()
    statuses |= {403, 404, 413, 415, 500} if method == "post" else set()
    kind = "photos" if described.each_fails else "html" if described.html else ""
    made["responses"] = {"200": _describe_answer(described)}
    for status in sorted(statuses):
        its_kind = "" if kind == "photos" and status in (401, 403, 404, 429) else kind
        responses[f"{its_kind}{status}"] = _error(status, its_kind)
        made["responses"][str(status)] = {"$ref": f"#/components/responses/{its_kind}{status}"}
    return made


def _body(described: Operation) -> Document:
    content: Document = {}
    if many := described.max_photos:
        files = {"type": "array", "items": _PHOTO, "minItems": 1, "maxItems": many} if many > 1 else _PHOTO
        content["multipart/form-data"] = {
            "schema": {"type": "object", "required": ["file"], "properties": {"file": files}}
        }
        if described.json:
            content |= {kind: {"schema": _PHOTO} for kind in ("image/*", "application/octet-stream")}
    if described.json:
        content[JSON] = {"schema": _ref(described.json)}
        if described.example:
            content[JSON]["example"] = described.example
    return content


def _describe_answer(described: Operation) -> Document:
    content: Document = {}
    about = "Lines of JSON"
    if described.answer:
        about = (inspect.getdoc(described.answer) or "The answer").partition("\n")[0].rstrip(".")
        content[JSON] = {"schema": _ref(described.answer)}
        if described.example_answer:
            content[JSON]["example"] = described.example_answer
    if described.lines:
        content["application/x-ndjson"] = {"schema": {"anyOf": [_ref(line) for line in described.lines]}}
    if described.events:
        parts = (Piece, Error, described.events)
        data = {
            "type": "string",
            "contentMediaType": JSON,
            "contentSchema": {"anyOf": [_ref(part) for part in parts]},
        }
        event = {"type": "string", "enum": [part.event for part in parts]}
        content["text/event-stream"] = {
            "schema": {
                "type": "object",
                "required": ["event", "data"],
                "properties": {"event": event, "data": data},
            }
        }
        about += ", or events"
    return {"description": about, "content": content | (_HTML if described.html else {})}


def _error(status: int, kind: str) -> Document:
    codes = sorted(
        code for code, its_status in STATUSES.items() if its_status == status and code not in _UNSEEN
    )
    schema = {"anyOf": [_ref(Error), _ref(AllFailed)]} if kind == "photos" else _ref(Error)
    return {
        "description": ", ".join(f"`{code}`" for code in codes),
        **({"headers": _RETRY} if status in (429, 503) else {}),
        "content": {JSON: {"schema": schema}} | (_HTML if kind == "html" else {}),
    }


class _Schemas(GenerateJsonSchema):
    """Schemas without the titles and defaults that say nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> Document:
        made = super().model_schema(schema)
        made.pop("title", None)
        return made

    def default_schema(self, schema: Any) -> Document:
        made = super().default_schema(schema)
        if made.get("default", "") is None:
            del made["default"]
        return made


class _AnswerSchemas(_Schemas):
    """Fields that are None are left out of an answer. Answers may get further fields."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return field["schema"].get("default", "") is not None

    def nullable_schema(self, schema: Any) -> Document:
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: Any) -> Document:
        made = super().model_schema(schema)
        if made.get("additionalProperties") is False:
            del made["additionalProperties"]
        return made


def _schemas(types: set[type[Schema]]) -> Document:
    made: Document = {}
    for generator in (_Schemas, _AnswerSchemas):
        is_request = generator is _Schemas
        chosen = sorted((kind for kind in types if issubclass(kind, Chosen) == is_request), key=str)
        _, found = models_json_schema(
            [(kind, "validation") for kind in chosen],
            ref_template="#/components/schemas/{model}",
            schema_generator=generator,
        )
        made |= found["$defs"]
    return dict(sorted(made.items()))


def _ref(kind: type[Schema]) -> Document:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
