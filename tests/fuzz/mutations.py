"""Small changes of bytes and of text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

NUMBERS = (0, 1, 2, 3, -1, 7, 127, 128, 255, 256, 32767, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32)
NUMBERS += (2**40, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 10**30)
WORDS = (
    b"nan",
    b"inf",
    b"-inf",
    b"1e400",
    b"0x10",
    b"1_000",
    b"",
    b"-",
    b"+1",
    b"1.5",
    b"None",
    b"true",
    b'"1"',
    b"1e3",
)
MARKS = (
    b"\0",
    b"\n",
    b"\r",
    b",",
    b";",
    b"\t",
    b" ",
    b"#",
    b"%",
    b'"',
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"-",
)
_DIGITS = re.compile(rb"-?\d+")


def changed(draw: Random, data: bytes, others: Sequence[bytes] = (b"",)) -> bytes:
    """Some small changes, one to four; ``others`` are what parts are taken from."""
    for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
        data = draw.choice(_CHANGES)(draw, data, draw.choice(others) if others else b"")
    return data


def other_number(draw: Random, text: bytes, _: bytes = b"") -> bytes:
    """Another number, or a word, in place of a number of a text."""
    found = list(_DIGITS.finditer(text))
    if not found:
        return text
    place = draw.choice(found)
    new = draw.choice(WORDS) if draw.random() < 0.3 else str(number(draw, int(place.group()[:18]))).encode()
    return text[: place.start()] + new + text[place.end() :]


def number(draw: Random, old: int = 0) -> int:
    """A number that may be one too many, or far too many."""
    return draw.choice((old + 1, old - 1, old * 2, -old, *draw.sample(NUMBERS, 6)))


def _span(draw: Random, data: bytes, most: int = 64) -> slice:
    first = draw.randrange(len(data) + 1)
    return slice(first, min(len(data), first + 1 + int(most * draw.random() ** 3)))


def _flip(draw: Random, data: bytes, _: bytes) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _byte(draw: Random, data: bytes, _: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes([draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))]) + data[at + 1 :]


def _integer(draw: Random, data: bytes, _: bytes) -> bytes:
    """A number of 1, 2, 4 or 8 bytes is written over what is there."""
    at, width = draw.randrange(len(data) + 1), draw.choice((1, 2, 4, 8))
    order = draw.choice(("little", "big"))
    old = int.from_bytes(data[at : at + width], order)
    new = number(draw, old) % (1 << 8 * width)
    return data[:at] + new.to_bytes(width, order) + data[at + width :]


def _cut(draw: Random, data: bytes, _: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _without(draw: Random, data: bytes, _: bytes) -> bytes:
    gone = _span(draw, data)
    return data[: gone.start] + data[gone.stop :]


def _again(draw: Random, data: bytes, _: bytes) -> bytes:
    part = _span(draw, data)
    return data[: part.stop] + data[part] * draw.choice((1, 1, 2, 50)) + data[part.stop :]


def _insert(draw: Random, data: bytes, _: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice((*MARKS, *WORDS)) + data[at:]


def _splice(draw: Random, data: bytes, other: bytes) -> bytes:
    part, at = _span(draw, other, len(other)), draw.randrange(len(data) + 1)
    return data[:at] + other[part] + data[draw.choice((at, min(len(data), at + part.stop - part.start))) :]


_CHANGES = (_flip, _flip, _byte, _integer, _integer, _cut, _without, _again, _insert, _splice, other_number)
