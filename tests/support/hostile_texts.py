"""Texts that nobody would write, drawn by chance."""

from __future__ import annotations

import random

_KINDS = (
    "abcdefghij XYZ",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя АБВ",
    "".join(map(chr, range(32))) + "\x7f\x80\x85\x9f",
    "אבגדהابتث\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇷🇺🇬🇧👍🏿\U000e0067\U000e007f",
    "\u0300\u0301\u0308\u20dd\u0489\u1ab0\ufe20",
    "\ufeff\ufffe\uffff\ufffd\u2028\u2029\u00a0\u3000\u200b\u2060",
    "\ud800\udbff\udc00\udfff",
    ".!?…\"'»”’)]([{<«“„ \n\t,;:—–-",
    "▁</s><pad><unk>",
    "中文日本語한국어ไทยहिन्दी𝔘𝔫𝔦ⅷ①㍿ﷺ",
)
_LENGTHS = (0, 1, 2, 3, 10, 50, 300)


def hostile_text(draw: random.Random) -> str:
    """Of a few kinds of characters, mixed or one after another; now and then longer than is allowed."""
    kinds = draw.sample(_KINDS, draw.randint(1, 3))
    length = draw.choice(_LENGTHS) if draw.random() < 0.98 else draw.randint(1900, 2100)
    if draw.random() < 0.5:
        return "".join(draw.choice(draw.choice(kinds)) for _ in range(length))
    length_per_kind = max(1, length // len(kinds)) if length else 0
    return "".join(draw.choice(kind) * draw.randint(0, length_per_kind) for kind in kinds)
