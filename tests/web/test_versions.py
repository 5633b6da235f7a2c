"""Versions of a model that serve side by side, of a real Triton: `gourmet config` has them do so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.triton import some_models, triton_server
from support.web_app import form

from gourmet.cli import main
from gourmet.triton_client.triton import Triton

MODEL = "digits"


@pytest.mark.slow
def test_two_served_versions_are_offered_and_compared_until_a_reset(
    start: Callable[..., Any], tmp_path: Path, sample: bytes
) -> None:
    models = some_models(tmp_path, MODEL)
    shutil.copytree(models / MODEL / "1", models / MODEL / "10")
    with triton_server(models) as server:
        server.wait_until_live(120)
        url = server.options.http_url

        def config(*arguments: str) -> str:
            server = ["--url", url, "--repository", str(models)]
            ran = CliRunner().invoke(main, ["config", *server, MODEL, *arguments])
            assert ran.exit_code == 0, ran.output
            return ran.output

        assert config("--versions", "1,10").endswith(f"serve: {MODEL}, {MODEL}/1\n")
        row = {"input": np.zeros((1, 1, 28, 28), np.float32)}
        for address in (url, f"grpc://{server.options.grpc_url}"):
            with Triton(address) as triton:
                assert triton.ready_versions() == [MODEL, f"{MODEL}/1"]
                versions = [triton.infer(name, row).model_version for name in (MODEL, f"{MODEL}/1")]
                assert versions == ["10", "1"]
                info = triton.describe(f"{MODEL}/1")
                assert (info.name, info.version, info.target) == (MODEL, "1", f"{MODEL}/1")
        web = start(url)

        def answered(query: str) -> str:
            reply = web.request("POST", f"/api/v1/digits{query}", sample, **{"Content-Type": "image/jpeg"})
            return str(reply.json["results"][0]["model"]["version"] if reply.status == 200 else reply.status)

        seen = [
            answered(query) for query in ("", "?version=1", "?model=digits/1", "?version=10", "?version=2")
        ]
        assert seen == ["10", "1", "1", "10", "404"]
        body, content = form(sample)
        accept = {"Accept": "application/json"}
        reply = web.request("POST", "/compare?system=digits", body, **accept, **content)
        assert [row["model"]["version"] for row in reply.json["results"]] == ["10", "1"]
        assert config("--versions", "10").endswith(f"serve: {MODEL}\n")
        assert config("--versions", "all").endswith(f"serve: {MODEL}, {MODEL}/1\n")
        config("--reset")
        with Triton(url) as triton:
            assert triton.ready_versions() == [MODEL]
