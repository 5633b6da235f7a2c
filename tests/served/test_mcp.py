"""`gourmet mcp` as an agent uses it: the package's own client, over stdin and stdout."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from support.needs import need_module
from support.triton import RunningTriton
from support.up import GOURMET

from gourmet.systems.food11.contract import SYSTEM

need_module("mcp", "pip install -c requirements/constraints.txt -r requirements/mcp.txt")


def calls(url: str, *asked: tuple[str, dict[str, Any]]) -> list[Any]:
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=str(GOURMET), args=["mcp", "--url", url])

    async def run() -> list[Any]:
        async with Client(server, read_timeout_seconds=60) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {"classify_photos", "translate", "describe_models"}
            return [await client.call_tool(name, arguments) for name, arguments in asked]

    return asyncio.run(run())


def test_an_agent_classifies_photos_translates_and_asks_for_models(
    triton: RunningTriton, tmp_path: Path
) -> None:
    (tmp_path / "dish.jpg").write_bytes(SYSTEM.sample())
    (tmp_path / "none.png").write_bytes(b"no picture")
    photos, texts, models = calls(
        triton.http_url,
        ("classify_photos", {"paths": [str(tmp_path)]}),
        ("translate", {"texts": ["Я люблю чай."]}),
        ("describe_models", {}),
    )
    dish, other = photos.structured_content["result"]
    assert (dish["food_class"], dish["certainty"]) == ("Noodles/Pasta", "sure")
    assert (other["certainty"], "not a picture" in other["error"]) == (None, True)
    assert texts.structured_content["result"][0]["translation"] == "I like tea."
    described = {model["name"]: model for model in models.structured_content["result"]}
    assert "Dessert" in described["food_classifier"]["labels"]


def test_an_agent_reads_no_other_files_and_gets_the_reason(tmp_path: Path) -> None:
    secret = tmp_path / "passwords.txt"
    secret.write_text("hunter2")
    refused, away = calls(
        "127.0.0.1:9",
        ("classify_photos", {"paths": [str(secret)]}),
        ("describe_models", {}),
    )
    assert refused.is_error
    assert "is not a photo or a folder" in refused.content[0].text
    assert "hunter2" not in refused.content[0].text
    assert "no Triton answers at 127.0.0.1:9" in away.content[0].text
