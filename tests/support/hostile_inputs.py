"""Texts, data, pictures and archives that somebody might hand over, made to do harm to who reads them.

Weights and networks are those of `hostile_files`.
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

ESCAPES: Final = "\x1b]0;owned\x07\x1b[2J\nError: none"
# A file's or folder's name can have all of these in it.
NAME: Final = "a\x1b]0;owned\x07\nb"
DEEP: Final = 200_000
# What stands where a number, a text, a list or a table is expected.
VALUES: Final[dict[str, Any]] = {
    "null": None,
    "a list": [],
    "a table": {},
    "a text": "x",
    "escapes": ESCAPES,
    "a path": "../../../../victim",
    "a fifo": "/proc/self/fd/0",
    "zero": 0,
    "minus one": -1,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "a huge number": 10**30,
    "true": True,
}


def no_files(folder: Path, suffix: str) -> dict[str, Path]:
    """What is no file, or none that ends, under names that somebody's file could have."""
    paths = {
        name: folder / f"{name.replace(' ', '_')}{suffix}"
        for name in ("fifo", "folder", "loop", "dangling", "zeros", "sparse", "socket")
    }
    os.mkfifo(paths["fifo"])
    paths["folder"].mkdir()
    paths["loop"].symlink_to(paths["loop"])
    paths["dangling"].symlink_to(folder / "nowhere")
    paths["zeros"].symlink_to("/dev/zero")
    with paths["sparse"].open("wb") as file:
        file.truncate(64 << 30)
    here = os.open(folder, os.O_RDONLY)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{here}/{paths['socket'].name}")
    os.close(here)
    return paths


def texts() -> dict[str, bytes]:
    """No text of any format."""
    return {
        "empty": b"",
        "noise": bytes(range(256)) * 8,
        "zeros": bytes(4096),
        "not UTF-8": b'{"a": "\xff\xfe"}',
        "UTF-16": '{"a": 1}'.encode("utf-16"),
        "escapes": ESCAPES.encode(),
        "deep lists": b"[" * DEEP,
        "deep tables": b'{"a":' * DEEP,
        "a number of a million digits": b"1" * 1_000_000,
        "a surrogate": b'"\\ud800"',
        "a list": b"[1, 2]",
        "a text": b'"x"',
        "null": b"null",
        "NaN": b"NaN",
        "an empty table": b"{}",
        "eight megabytes in a line": b"x" * (8 << 20),
    }


def changed(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document with each of its values missing, and in turn something else."""
    values = list(VALUES.items())
    for number, keys in enumerate(_places(document)):
        where = ".".join(map(str, keys))
        without = copy.deepcopy(document)
        del _holder(without, keys)[keys[-1]]
        yield f"no {where}", without
        for name, value in (values[(number + each * 5) % len(values)] for each in range(3)):
            other = copy.deepcopy(document)
            _holder(other, keys)[keys[-1]] = value
            yield f"{where} is {name}", other


def _places(table: dict[str, Any]) -> Iterator[list[str]]:
    for key, value in table.items():
        yield [key]
        if isinstance(value, dict):
            yield from ([key, *more] for more in _places(value))


def _holder(document: Any, keys: list[str]) -> Any:
    for key in keys[:-1]:
        document = document[key]
    return document


def json_files(document: dict[str, Any]) -> dict[str, bytes]:
    return {name: json.dumps(each).encode() for name, each in changed(document)}


def toml_files() -> dict[str, bytes]:
    good = (
        b'task = "classification"\ntitle = "Flowers"\nlabels = ["a", "b"]\n'
        b'architecture = "torchvision:resnet18"\n'
        b"[pictures]\nsize = 8\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n"
        b'[outputs]\nprobabilities = ["p"]\nlogits = ["l"]\n'
    )
    swaps = {
        "no task": (b'task = "classification"\n', b""),
        "another task": (b"classification", b"__main__"),
        "deep": (b'"Flowers"', b"[" * 20_000),
        "NaN": (b"[1, 1, 1]", b"[nan, 1, 1]"),
        "Infinity": (b"[1, 1, 1]", b"[inf, 1, 1]"),
        "a size of nothing": (b"size = 8", b"size = 0"),
        "a size without end": (b"size = 8", b"size = 1" + b"0" * 30),
        "a size of NaN": (b"size = 8", b"size = nan"),
        "labels that are numbers": (b'["a", "b"]', b"[1, 2]"),
        "a label of escapes": (b'["a", "b"]', b'["\\u001b]0;owned\\u0007", "b"]'),
        "labels that are a text": (b'["a", "b"]', b'"ab"'),
        "no labels": (b'["a", "b"]', b"[]"),
        "code as a network": (b"torchvision:resnet18", b"torchvision:__import__('os').system"),
        "a network of the hub": (b"torchvision:resnet18", b"timm:hf-hub:somebody/something"),
        "twice": (b'title = "Flowers"', b'title = "Flowers"\ntitle = "x"'),
        "cut short": (b'["l"]\n', b'["l'),
    }
    return {name: good.replace(*swap) for name, swap in swaps.items()}


def configs() -> dict[str, bytes]:
    """config.pbtxt that Triton could not read, or that says what nobody wants."""
    good = b'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 4\n'
    deep = b'ensemble_scheduling { step { input_map { key: "' * 5000
    return {
        "unknown field": good + b"run: 1\n",
        "text as a number": b'max_batch_size: "x"\n',
        "a number that overflows": b"max_batch_size: 99999999999999999999\n",
        "deep": deep,
        "not closed": good + b"input [ { name",
        "twice": good + b'name: "n"\n',
        "escapes": good + b'\x1b]0;owned\x07: "x"\n',
        "escapes in a name": b'name: "\\033]0;owned\\007"\nbackend: ""\nfield: 1',
        "any message": b"[type.googleapis.com/x] { }\n",
        "ten thousand errors": b"x: 1\n" * 10_000,
    }


@functools.cache
def deflated_zeros(count: int, head: bytes = b"") -> tuple[bytes, int]:
    """So many zeros behind `head`, deflated, and their checksum: a block of them is deflated once."""
    block, rest = bytes(1 << 20), bytes(count % (1 << 20))
    packer, crc = zlib.compressobj(1, zlib.DEFLATED, -15), zlib.crc32(head)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    once = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(count >> 20):
        crc = zlib.crc32(block, crc)
    packed = first + once * (count >> 20) + packer.compress(rest) + packer.flush()
    return packed, zlib.crc32(rest, crc)


def with_zeros(archive: bytes, name: str, count: int, head: bytes = b"") -> bytes:
    """The zip, and at its end a file of so many zeros."""
    packed, crc = deflated_zeros(count, head)
    buffer = io.BytesIO(archive)
    with zipfile.ZipFile(buffer, "a") as opened:
        opened.writestr(name, packed)  # as it is, and what lies there is changed to say what it is
        about, directory = opened.getinfo(name), opened.start_dir
    found = bytearray(buffer.getvalue())
    for at in (about.header_offset + 8, found.rindex(name.encode(), directory) - 36):
        struct.pack_into("<H", found, at, zipfile.ZIP_DEFLATED)
        struct.pack_into("<III", found, at + 6, crc, len(packed), count + len(head))
    return bytes(found)


def archives() -> dict[str, bytes]:
    """Zips of pictures."""
    picture = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(picture, "JPEG")
    jpeg = picture.getvalue()

    def packed(members: dict[str, bytes], change: Callable[[bytes], bytes] = bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return change(buffer.getvalue())

    return {
        "half a gigabyte deflated": with_zeros(packed({}), "Bread/1.jpg", 1 << 29),
        "names that climb": packed({"../../victim.jpg": jpeg, "/tmp/victim.jpg": jpeg}),
        "escapes in a name": packed({f"Bread/{ESCAPES}.jpg": b"none"}),
        "encrypted": packed(
            {"Bread/1.jpg": jpeg}, lambda data: data.replace(b"PK\1\2\24\3\24\0\0", b"PK\1\2\24\3\24\0\1")
        ),
        "unknown method": packed(
            {"Bread/1.jpg": jpeg}, lambda data: data.replace(b"\0\0\0\0!\0", b"\0\0\x63\0!\0")
        ),
        "damaged": packed({"Bread/1.jpg": jpeg}, lambda data: data.replace(jpeg[20:60], bytes(40))),
        "cut short": packed({"Bread/1.jpg": jpeg}, lambda data: data[: len(data) // 2]),
        "twenty thousand members": packed({f"Bread/{number}.jpg": b"" for number in range(20_000)}),
        "a class of 5,000 digits": packed({f"{'9' * 5000}/1.jpg": jpeg}),
        "no class": packed({"1.jpg": jpeg}),
        "a lying directory": packed({"Bread/1.jpg": jpeg}, lambda data: data[:-6] + b"\xff\xff\xff\xff\0\0"),
        "empty": packed({}),
    }


def packages() -> dict[str, bytes]:
    """model.zip of a model that generates: nothing of it may be packed, and its parts are what they say."""

    def packed(name: str, content: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name, content)
        return buffer.getvalue()

    return {
        "half a gigabyte deflated": with_zeros(packed("source.spm", b""), "vocab.json", 1 << 29),
        "parts that share their bytes": sharing_bytes(packed("source.spm", bytes(1 << 20)), 2_000),
        "encrypted": packed("source.spm", b"x").replace(b"PK\1\2\24\3\24\0\0", b"PK\1\2\24\3\24\0\1"),
        "unknown method": packed("source.spm", b"x").replace(b"\0\0\0\0!\0", b"\0\0\x63\0!\0"),
        "nothing": packed("a", b""),
        "another vocabulary": packed("source.spm", b"none"),
        "elsewhere, a list": packed("elsewhere.json", b"[]"),
        "elsewhere, deep": packed("elsewhere.json", b"[" * DEEP),
        "elsewhere, above": packed("elsewhere.json", b'{"a": {"model": "..", "sha256": "0"}}'),
        "elsewhere, itself": packed("elsewhere.json", b'{"a": {"model": "", "sha256": "0"}}'),
        "elsewhere, long": packed("elsewhere.json", b'{"a": {"model": "%b", "sha256": "0"}}' % (b"x" * 300)),
    }


def sharing_bytes(archive: bytes, count: int) -> bytes:
    """The zip with each of its parts named so many times, which are the same bytes."""
    at = archive.index(b"PK\1\2")
    end = min(place for mark in (b"PK\5\6", b"PK\6\6") if (place := archive.find(mark, at)) > 0)
    tail = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, count * (end - at), at, 0)
    return archive[:at] + archive[at:end] * count + tail


def arrays() -> dict[str, bytes]:
    """.npz files."""

    def saved(name: str, content: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name, content)
        return buffer.getvalue()

    def headed(words: str) -> bytes:
        head = words.encode().ljust(118) + b"\n"
        return b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head

    objects = io.BytesIO()
    np.savez(objects, x=np.array([print], dtype=object))
    return {
        "objects": objects.getvalue(),
        "a shape of terabytes": saved(
            "x.npy", headed("{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 40,)}")
        ),
        "terabytes": saved(
            "x.npy", headed("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}")
        ),
        "code as a header": saved("x.npy", headed("__import__('os').system('touch victim')")),
        "deep header": saved("x.npy", headed("(" * 100)),
        "half a gigabyte deflated": with_zeros(
            saved("y.txt", b""),
            "x.npy",
            1 << 29,
            headed("{'descr': '<f4', 'fortran_order': False, 'shape': (134217728,)}"),
        ),
        "no array": saved("x.txt", b"x"),
    }


def digits() -> dict[str, bytes]:
    """CSV and idx files, plain and gzip."""
    zeros, crc = deflated_zeros(1 << 29)
    return {
        "half a gigabyte of gzip": gzip.compress(b"")[:10] + zeros + struct.pack("<II", crc, 1 << 29),
        "gzip cut short": gzip.compress(b"1,2\n" * 1000)[:40],
        "a shape of terabytes": b"\0\0\x08\3" + b"\xff" * 12,
        "words": b"label,pixel0\na,b\n",
        "NaN": b"nan," * 64 + b"1\n",
        "a number of a million digits": b"1" * 1_000_000 + b",1\n",
        "a row of a million": b"1," * 1_000_000 + b"1\n",
    }


def few_digits(folder: Path) -> Path:
    """A file of forty digits that are well."""
    path = folder / "digits.csv"
    row = ",".join(["16"] * 32 + ["0"] * 32)
    path.write_text("".join(f"{row},{number % 10}\n" for number in range(100)))
    return path
