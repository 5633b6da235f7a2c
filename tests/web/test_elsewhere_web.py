"""The app under gunicorn in front of a Triton that is reached by TLS alone, with a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.needs import need
from support.tls import Certificates, TlsDoor
from support.web_app import StartWeb

TOKEN = "token-of-the-test"


def test_photos_and_texts_are_answered_over_tls_and_no_log_has_the_token(
    start: StartWeb, triton: Any, tmp_path: Path, sample: bytes
) -> None:
    need("openssl")
    certificates = Certificates(tmp_path)
    context = certificates.context()
    with TlsDoor(triton.http_url, context) as https, TlsDoor(triton.grpc_url, context) as grpcs:
        web = start(
            f"https://{https.address}",
            TRITON_GRPC_URL=f"grpcs://{grpcs.address}",
            TRITON_CA_FILE=str(certificates.ca),
            TRITON_TOKEN=TOKEN,
            WEB_CONCURRENCY="1",
        )
        assert web.request("GET", "/readyz").status == 200
        assert web.predict(sample).status == 200
        for stream in (False, True):
            body = {"text": "Я люблю чай.", "stream": stream}
            reply = web.request(
                "POST", "/api/v1/translate", json.dumps(body), Content_Type="application/json"
            )
            assert reply.status == 200, reply.body
            assert b"tea" in reply.body
        assert f"authorization: Bearer {TOKEN}".encode() in https.asked
        assert b"HTTP/2" in grpcs.asked
        assert web.stop() == 0
    assert TOKEN not in web.log.read_text()
