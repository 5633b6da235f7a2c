"""The OpenAPI 3.1 document of the app, made from its routes, their docstrings, shapes and errors.

Pydantic's types already are the answers, and their JSON Schema is that of OpenAPI 3.1. What remains is
less than what apispec or flask-smorest need, so a route says it itself, by `documented`.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from flask import Flask
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from app.api.schemas import Base64Photo, Base64Photos, Error, Schema
from app.core.errors import BadPicture, RefusedRequest, ServingError
from app.core.http import JSON, View, marks
from app.core.messages import starting_with
from app.core.settings import Settings

_EXAMPLES: Final = Path(__file__).parent / "examples"
# What may go wrong where photos are answered, and what of it with a single one.
ERRORS: Final = (400, 404, 413, 415, 500, 502, 503, 504)
_PHOTO_ERRORS: Final = (400, 413, 415, 500, 502, 503, 504)
# By `format`, which is older than 3.1, generated clients know that it is a file and no text.
_BINARY: Final = {
    "type": "string",
    "format": "binary",
    "contentMediaType": "application/octet-stream",
    "minLength": 1,
}
EVENTS: Final = "text/event-stream"
_HTML: Final = "text/html"
_REF: Final = "#/components/schemas/"
_KEYS: Final[list[dict[str, list[str]]]] = [{"bearer": []}, {"key": []}]
_WHEN: Final = {"schema": {"type": "integer"}, "description": "Seconds until it is worth trying"}
# What is the same in every document.
_BEGUN: Final = tomllib.loads(Path(__file__).with_name("openapi.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Parameter:
    """One of the query, where it says more than a text that may be left out."""

    about: str
    allowed: Collection[str] = ()
    required: bool = False


@dataclass(frozen=True)
class Operation:
    """What a route's code does not say by itself; its docstring has the summary and the description."""

    answer: type[Schema]
    # By content type, what each line or event of an answer may be that comes in parts.
    in_parts: Mapping[str, tuple[type[Schema], ...]] = field(default_factory=dict)
    as_json: bool = True
    # Whether it answers in HTML those who do not ask for JSON.
    as_html: bool = False
    errors: tuple[int, ...] = ERRORS
    # Whether a photo that failed alone is reported in the shape of the answer.
    fails_as_answer: bool = False
    bodies: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, str | Parameter] = field(default_factory=dict)
    # A body of JSON that is answered, to begin with.
    example: Mapping[str, Any] = field(default_factory=dict)
    # The system whose models it asks, or a task where those of any system of it do.
    asks: str = "classification"


def documented(operation: Operation) -> Callable[[View], View]:
    """Put a route into the document, and have what its query has beyond what stands there refused."""

    def mark(view: View) -> View:
        view.openapi = operation  # type: ignore[attr-defined]
        view.parameters = tuple(operation.query)  # type: ignore[attr-defined]
        return view

    return mark


def examples_of(operation_id: str) -> Path:
    """The folder with a client's code in several languages, which only some operations have."""
    return _EXAMPLES / operation_id.rpartition("_")[2]


def form(*, max_photos: int = 1) -> dict[str, Any]:
    """The body of a form with a photo, or at most so many, in its field `file`."""
    several = {"type": "array", "items": _BINARY, "minItems": 1, "maxItems": max_photos}
    files: dict[str, Any] = several if max_photos > 1 else _BINARY
    text = {"type": "string", "description": "As the parameter of that name"}
    fields = {"file": files, "model": text, "version": text}
    return {"multipart/form-data": {"type": "object", "required": ["file"], "properties": fields}}


def photos(*, max_photos: int = 1) -> dict[str, Any]:
    """The bodies in which a photo, or at most so many, may come."""
    return form(max_photos=max_photos) | {
        "image/*": _BINARY,
        "application/octet-stream": _BINARY,
        JSON: Base64Photos if max_photos > 1 else Base64Photo,
    }


def document(app: Flask, settings: Settings) -> dict[str, Any]:
    """The whole document; with keys or a rate limit only where they are set."""
    paths: dict[str, dict[str, Any]] = {}
    shapes: set[type[Schema]] = {Error}
    taken: set[type[Schema]] = set()
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        operation: Operation | None = getattr(view, "openapi", None)
        if operation is None:
            continue
        taken |= {body for body in operation.bodies.values() if isinstance(body, type)}
        shapes |= {operation.answer, *chain.from_iterable(operation.in_parts.values())}
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            summary, _, description = (inspect.getdoc(view) or "").partition("\n")
            paths.setdefault(rule.rule, {})[method.lower()] = {
                "summary": summary.rstrip("."),
                "description": " ".join(description.split()),
                **_described(operation, operation_id(rule.endpoint), not marks(view).open, settings),
            }
    components = {**_BEGUN["components"], "schemas": _schemas(shapes, taken)}
    return {**_BEGUN, "paths": dict(sorted(paths.items())), "components": components}


def operation_id(endpoint: str) -> str:
    return endpoint.replace(".", "_")


def _described(operation: Operation, id_: str, guarded: bool, settings: Settings) -> dict[str, Any]:
    statuses = set(operation.errors) | ({403} if operation.bodies else set())
    if guarded:
        statuses |= ({401} if settings.api_keys else set()) | ({429} if settings.rate_limit else set())
    content: dict[str, dict[str, Any]] = {
        kind: {"schema": _any_of([body])} for kind, body in operation.bodies.items()
    }
    if operation.example:
        content[JSON]["example"] = dict(operation.example)
    described: dict[str, Any] = {
        "operationId": id_,
        "security": _KEYS if guarded and settings.api_keys else [],
        "responses": {"200": _answer(operation, examples_of(id_) / "answer.json")}
        | {str(status): _refusal(status, operation) for status in sorted(statuses)},
        "parameters": [_parameter(name, said) for name, said in operation.query.items()],
        "requestBody": {"required": True, "content": content} if content else None,
    }
    return {name: said for name, said in described.items() if said or name == "security"}


def _parameter(name: str, said: str | Parameter) -> dict[str, Any]:
    said = Parameter(said) if isinstance(said, str) else said
    schema = {"type": "string"} | ({"enum": list(said.allowed)} if said.allowed else {})
    described = {"name": name, "in": "query", "schema": schema, "description": said.about}
    return described | ({"required": True} if said.required else {})


def _answer(operation: Operation, example: Path) -> dict[str, Any]:
    """JSON comes first, which is what generated clients read."""
    content: dict[str, Any] = {}
    if operation.as_json:
        content[JSON] = {"schema": _any_of([operation.answer])}
        if example.exists():
            content[JSON]["example"] = json.loads(example.read_text())
    for kind, shapes in operation.in_parts.items():
        content[kind] = {"schema": _event(shapes) if kind == EVENTS else _any_of(shapes)}
    return {"description": "The answer", "content": content | _html(operation)}


def _event(shapes: Sequence[type[Schema]]) -> dict[str, Any]:
    """One server-sent event."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": _any_of(shapes)}
    names = {"type": "string", "enum": [shape.event for shape in shapes]}
    return {"type": "object", "required": ["event", "data"], "properties": {"event": names, "data": data}}


def _html(operation: Operation) -> dict[str, Any]:
    return {_HTML: {"schema": {"type": "string"}}} if operation.as_html else {}


def _refusal(status: int, operation: Operation) -> dict[str, Any]:
    both = operation.fails_as_answer and status in _PHOTO_ERRORS
    content = {JSON: {"schema": _any_of([Error, operation.answer] if both else [Error])}}
    refused = {
        "description": ", ".join(f"`{code}`" for code in codes()[status]),
        "content": content | _html(operation),
    }
    return refused | ({"headers": {"Retry-After": _WHEN}} if status in (429, 503) else {})


def _any_of(shapes: Sequence[Any]) -> dict[str, Any]:
    schemas = [{"$ref": _REF + shape.__name__} if isinstance(shape, type) else shape for shape in shapes]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def codes() -> dict[int, list[str]]:
    """The codes of all errors by their status, the pictures' own among them."""
    found: dict[int, list[str]] = {}
    for kind in ServingError.__subclasses__():
        found.setdefault(kind.status, []).append(kind.code)
    for code, status in (RefusedRequest.STATUSES | BadPicture.STATUSES).items():
        found.setdefault(status, []).append(code)
    found[500] = [ServingError.code]
    found.setdefault(415, []).append("unsupported_media_type")
    return {status: sorted(set(names)) for status, names in found.items()}


class _Plain(GenerateJsonSchema):
    """With the texts of the fields, each under the schema that first has it, and without what says nothing.

    That is a title which repeats its field's name, and a default which means left out.
    """

    def model_schema(self, schema: Any) -> dict[str, Any]:
        made = super().model_schema(schema)
        for shape in schema["cls"].__mro__:
            for name, text in starting_with(f"shape.{shape.__name__}.").items():
                made["properties"][name].setdefault("description", text)
        return made

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        made = super().default_schema(schema)
        return {key: value for key, value in made.items() if (key, value) != ("default", None)}


def _schemas(shapes: set[type[Schema]], taken: set[type[Schema]]) -> dict[str, Any]:
    _, made = models_json_schema(
        [(shape, "serialization") for shape in sorted(shapes | taken, key=lambda shape: shape.__name__)],
        ref_template=_REF + "{model}",
        schema_generator=_Plain,
    )
    schemas: dict[str, Any] = made["$defs"]
    for name, schema in schemas.items():
        # Answers may get new fields, which older clients should not mind.
        if name not in {shape.__name__ for shape in taken}:
            schema.pop("additionalProperties", None)
        # Docstrings are wrapped for the reader of the code.
        schema["description"] = re.sub(r"\s+", " ", schema.get("description", "")).strip()
    return dict(sorted(schemas.items()))
