"""FastAPI and transformers, as one would write it: the handler decodes the photo and generates.

WEIGHTS is a captioner's checkpoint; THREADS are torch's, for each of the requests that are at work.
"""

import io
import os
from pathlib import Path

import numpy as np
import torch
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image

from gourmet.systems.captioner.network import load

torch.set_num_threads(int(os.environ["THREADS"]))
checkpoint = load(Path(os.environ["WEIGHTS"]))
network, tokenizer = checkpoint.network, checkpoint.tokenizer
app = FastAPI()


def described(photo: bytes) -> str:
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    pixels = torch.from_numpy(np.array(image.resize((network.side, network.side), Image.Resampling.BICUBIC)))
    with torch.inference_mode():
        states = network.states(network.normalised(pixels[None]))
    words = network.generate(states, [], int(os.environ["MAX_TOKENS"]))[0, 1:].tolist()
    return tokenizer.decode(words[: words.index(network.end)] if network.end in words else words)


@app.post("/caption")
async def caption(request: Request) -> dict[str, str]:
    return {"caption": await run_in_threadpool(described, await request.body())}
