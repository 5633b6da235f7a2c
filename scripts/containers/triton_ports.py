"""Pass connections on to Triton's ports.

Triton's networks are internal, so that engines publish none of its ports.
This container has one that is not.
"""

from __future__ import annotations

import asyncio
import contextlib


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(port: int) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_triton, to_triton = await asyncio.open_connection("triton", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, to_triton), copy(from_triton, writer))

    server = await asyncio.start_server(forward, "0.0.0.0", port)
    await server.serve_forever()


async def main() -> None:
    await asyncio.gather(*map(serve, (8000, 8001, 8002)))


asyncio.run(main())
