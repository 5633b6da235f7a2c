"""A process that decodes pictures for another, one after another, and never for long: see `decoders`.

python -m gourmet.pictures.decoding_process LIMITS        # see gourmet.runtime.sandbox
"""

from __future__ import annotations

from PIL import Image

from gourmet.pictures.decode import PictureError, answer
from gourmet.runtime import malloc, sandbox
from gourmet.runtime.sandbox import Facts, Refused


def _answer(facts: Facts, data: bytes) -> tuple[Facts, bytes]:
    try:
        return answer(facts, data)
    except PictureError as exc:
        raise Refused(exc.code, str(exc)) from exc


if __name__ == "__main__":
    malloc.use(malloc.WEB)
    Image.init()
    sandbox.serve(_answer)
