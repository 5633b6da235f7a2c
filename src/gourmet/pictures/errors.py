"""What can be wrong with a picture, and with decoding it.

PictureError            .code, one of
  empty                   no bytes at all
  not_a_picture           no allowed format starts like this
  unsupported_format      a picture or document of a format that is not allowed
  mixed_file              a picture that is a document or an archive too
  animated                a moving picture (GIF excepted: its first frame counts)
  too_many_pixels         more pixels than we are willing to decode
  too_complex             few pixels, made so that decoding them takes minutes or gigabytes
  too_slow                decoding it was ended, as it took too long
  broken_picture          begins like a picture but cannot be decoded
  blank                   a picture of one colour where something should be drawn
  several_digits          more than one digit where one should be drawn
DecodersBusy            as many pictures as allowed are being decoded at the moment
"""

from __future__ import annotations


class PictureError(ValueError):
    """A picture that cannot be used; `code` says which kind of fault, the message says it in words."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DecodersBusy(Exception):
    """Not the picture's fault: the same one may be decoded a moment later."""


def too_complex(reason: str) -> PictureError:
    return PictureError("too_complex", f"this picture is not decoded, as {reason}: save it again")
