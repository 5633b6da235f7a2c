"""The errors of pictures and of decoding them.

PictureError            .code, one of
  empty                   no bytes at all
  not_a_picture           no allowed format starts like this
  unsupported_format      a picture or document of a format that is not allowed
  mixed_file              a picture that is also a document or an archive
  animated                an animation (except GIF: its first frame counts)
  too_many_pixels         more pixels than allowed
  too_complex             few pixels, but decoding them would take minutes or gigabytes
  too_slow                decoding was stopped, since it took too long
  broken_picture          begins like a picture but cannot be decoded
  blank                   a picture of one colour where a drawing is expected
  several_digits          more than one digit where one is expected
DecodersBusy            the allowed number of pictures is being decoded at the moment
"""

from __future__ import annotations


class PictureError(ValueError):
    """A picture that cannot be used. `code` is the kind of fault, the message explains it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DecodersBusy(Exception):
    """All decoders are busy. The same picture may be decoded a moment later."""


def too_complex(reason: str) -> PictureError:
    return PictureError("too_complex", f"this picture is not decoded, since {reason}: save it again")
