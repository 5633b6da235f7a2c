"""What is said to those who are owed an answer by a worker that is killed (`app.survivor`)."""

from __future__ import annotations

from flask import Flask, g

from app import errors, web
from app.survivor import HERE_THE_ID, LastWords


def of(app: Flask) -> LastWords:
    return LastWords(
        json=_said(app, Accept="application/json"),
        page=_said(app, Accept="text/html"),
        fragment=_said(app, Accept="*/*"),
    )


def _said(app: Flask, **headers: str) -> bytes:
    with app.test_request_context(headers=headers):
        g.request_id = HERE_THE_ID.decode()
        response = web.finish(errors.response(errors.Interrupted()))
    response.headers.remove("Content-Length")
    lines = [f"HTTP/1.1 {response.status}", *(f"{name}: {value}" for name, value in response.headers)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + response.get_data()
