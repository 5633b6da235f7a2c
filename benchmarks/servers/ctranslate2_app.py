"""FastAPI and CTranslate2, written in the usual way: the handler tokenizes and translates.

MODEL is a folder that the bench converted, TOKENIZER one with source.spm and target.spm; THREADS are those of
a translation, WORKERS how many go on at a time.
"""

import os
from pathlib import Path

import ctranslate2
from fastapi import FastAPI
from pydantic import BaseModel
from sentencepiece import SentencePieceProcessor

tokenizer = Path(os.environ["TOKENIZER"])
source = SentencePieceProcessor(model_file=str(tokenizer / "source.spm"))
target = SentencePieceProcessor(model_file=str(tokenizer / "target.spm"))
translator = ctranslate2.Translator(
    os.environ["MODEL"],
    inter_threads=int(os.environ["WORKERS"]),
    intra_threads=int(os.environ["THREADS"]),
)
app = FastAPI()


class Text(BaseModel):
    text: str


@app.post("/translate")
def translate(request: Text) -> dict[str, str]:
    # A plain function, which FastAPI runs in its thread pool, and the translator lets go of the interpreter.
    pieces = [*source.encode(request.text, out_type=str), "</s>"]
    (result,) = translator.translate_batch(
        [pieces], beam_size=1, max_decoding_length=256, suppress_sequences=[["<pad>"]]
    )
    return {"translation": target.decode_pieces(result.hypotheses[0])}
