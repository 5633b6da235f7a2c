"""The OpenAPI 3.1 document of the app: openapi.json, without the routes that this app does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from flask import Flask

_FILE: Final = Path(__file__).with_name("openapi.json")


def openapi_document(systems: list[str], max_photos: int) -> dict[str, Any]:
    """Read the file, and fill in what depends on the installation and its settings."""
    document: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    schemas["SystemName"]["enum"] = systems
    schemas["PhotoFiles"]["maxItems"] = max_photos
    return document


def drop_missing_routes(app: Flask, document: dict[str, Any]) -> None:
    """Remove the paths that the app has no route for, and have views refuse unknown parameters."""
    views: dict[str, Any] = {
        rule.rule: app.view_functions[rule.endpoint] for rule in app.url_map.iter_rules()
    }
    document["paths"] = {path: operations for path, operations in document["paths"].items() if path in views}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            parameters = operation.get("parameters", ())
            # A reference ends with the parameter's name.
            names = tuple(
                parameter.get("name") or parameter["$ref"].rpartition("/")[2] for parameter in parameters
            )
            views[path].parameters = names
