"""A sandboxed process that decodes pictures one after another, for `decoders`.

python -m gourmet.pictures.decoding_process LIMITS        # see gourmet.pictures.sandbox
"""

from __future__ import annotations

import importlib

from PIL import Image

from gourmet.pictures import sandbox
from gourmet.pictures.decode import PictureError, answer
from gourmet.pictures.header import FORMATS, HEIF_PLUGIN
from gourmet.pictures.sandbox import Facts, Refused
from gourmet.served import malloc


def _answer(facts: Facts, data: bytes) -> tuple[Facts, bytes]:
    try:
        return answer(facts, data)
    except PictureError as exc:
        raise Refused(exc.code, str(exc)) from exc


def _register_heif() -> None:
    # Without thumbnails: one may show something else than its photo.
    plugin = importlib.import_module(HEIF_PLUGIN)
    plugin.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)


if __name__ == "__main__":
    malloc.use(malloc.WEB)
    Image.init()
    if "HEIF" in FORMATS:
        _register_heif()
    sandbox.serve(_answer)
