"""Objects of S3 and of what speaks its protocol, by names like s3://BUCKET/KEY.

AWS' own variables say where it is and who asks: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on.

    python3 -m gourmet.runtime.object_store s3://bucket/models /models     # all below it, once
"""

from __future__ import annotations

import contextlib
import errno
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError, UsageError, printable
from gourmet.runtime.optional import optional
from gourmet.runtime.reading import in_short

_SCHEME: Final = "s3://"
# For the requests of one question, after which a store is away.
_RETRIES: Final = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_TIMES: Final = {"connect_timeout": "5s", "timeout": "60s"}
# The same for somebody who waits for an answer.
_RETRIES_SOON: Final = {"max_retries": 1, "retry_timeout": timedelta(seconds=2)}
_TIMES_SOON: Final = {"connect_timeout": "1s", "timeout": "3s"}


def is_object(name: str) -> bool:
    return name.startswith(_SCHEME)


def check_object_name(name: str) -> None:
    """Raise UsageError unless it names a bucket at least, and the package is there."""
    if not _parts(name)[0]:
        raise UsageError(f"{name} names no bucket: write s3://BUCKET/PREFIX")
    _obstore()


def names_below(name: str, *, soon: bool = False) -> Iterator[str]:
    """Those of all objects below a prefix, which ends as a folder's name does, in the store's order.

    `soon`: a request for a thousand of them takes seconds at most.
    """
    bucket, _ = _parts(name)
    yield from (f"{_SCHEME}{bucket}/{key}" for key, _ in _listed(name, soon=soon))


def read_object(name: str, max_bytes: int) -> bytes:
    """OSError where it is not there, may not be read or is larger; GourmetError where the store is away."""
    bucket, key = _parts(name)
    with _explained(name):
        try:
            found = _store(bucket).get(key)
            content, size = bytearray(), int(found.meta["size"])
            for piece in found if size <= max_bytes else ():
                content += piece
                if (size := len(content)) > max_bytes:  # whatever it said
                    break
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MB", name)
            return bytes(content)
        except FileNotFoundError:
            raise OSError(errno.ENOENT, "no such object", name) from None
        except _obstore().exceptions.PermissionDeniedError:
            raise OSError(errno.EACCES, "the store denies access to it", name) from None


def put_object(name: str, data: bytes) -> None:
    """Write it whole, within seconds; OSError or GourmetError where that fails."""
    bucket, key = _parts(name)
    with _explained(name):
        _store(bucket, soon=True).put(key, data, use_multipart=False)


def delete_object(name: str) -> None:
    bucket, key = _parts(name)
    with _explained(name):
        _store(bucket, soon=True).delete(key)


def fetch(name: str, folder: Path) -> str:
    """Put all objects below a name into a folder; say how many there were."""
    check_object_name(name)
    objects, size = 0, 0
    for key, its_size in _listed(name):
        try:
            with _explained(f"{name}: {key}"):
                size += _fetch(name, key, folder)
        except FileNotFoundError:
            if not its_size:  # what consoles make of a folder: its real name ends in "/"
                continue
            raise GourmetError(f"{name}: {key} went away after it was listed: try again") from None
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not below that name"
            raise GourmetError(f"{name}: {key} cannot be a file in {folder} ({why}): rename it") from exc
        objects += 1
    if not objects:
        raise GourmetError(f"nothing found below {name}: put the files there, or name another prefix")
    return f"{objects} objects, {size >> 20} MB, fetched from {name}"


def _listed(name: str, *, soon: bool = False) -> Iterator[tuple[str, int]]:
    """Keys below a name, and their sizes."""
    bucket, prefix = _parts(name)
    with _explained(name):
        for some in _store(bucket, soon).list(prefix or None):
            yield from ((each["path"], each["size"]) for each in some)


def _fetch(name: str, key: str, folder: Path) -> int:
    """Put an object where its key says, and say how large it is."""
    bucket, prefix = _parts(name)
    path = folder / Path(key).relative_to(prefix)  # a key has no ".." in it: they refuse to list it
    found = _store(bucket).get(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        return sum(map(file.write, found))


def _parts(name: str) -> tuple[str, str]:
    bucket, _, key = name.removeprefix(_SCHEME).partition("/")
    return bucket, key.strip("/")


def _obstore() -> Any:
    return optional("obstore", "S3", "s3.txt", ", or copy what is there to a folder")


@cache
def _store(bucket: str, soon: bool = False) -> Any:
    times, retries = (_TIMES_SOON, _RETRIES_SOON) if soon else (_TIMES, _RETRIES)
    options = {**times, "allow_http": True}  # of an endpoint that says so
    return optional("obstore.store", "S3", "s3.txt").S3Store(
        bucket, client_options=options, retry_config=retries
    )


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except _obstore().exceptions.BaseError as exc:
        said = re.search("<Message>(.{1,300}?)</Message>", str(exc))
        raise GourmetError(
            f"{name} cannot be had: {said[1] if said else in_short(exc)}\n"
            "       AWS_ENDPOINT_URL and AWS_REGION say where it is, "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY who asks"
        ) from exc


if __name__ == "__main__":
    try:
        sys.stdout.write(fetch(sys.argv[1], Path(sys.argv[2])) + "\n")
    except GourmetError as reason:
        sys.exit(printable(str(reason)))
