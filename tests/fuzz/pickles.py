"""Pickles that somebody has thought of, and pickles whose opcodes are changed."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from mutations import NUMBERS, changed, other_number

CANARY = "code-has-run"
_CODES = {code.code.encode("latin1"): code for code in pickletools.opcodes}
_TOUCH = f"touch {CANARY}"
_OPEN = f"open('{CANARY}','w')"


def _call(module: str, name: str, *arguments: str) -> bytes:
    words = b"".join(b"X" + struct.pack("<I", len(word)) + word.encode() for word in arguments)
    return f"c{module}\n{name}\n".encode() + b"(" + words + b"tR"


def _named(*parts: str) -> bytes:
    """A global of protocol 4, whose name may have dots."""
    return b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in parts) + b"\x93"


def _long(value: int) -> bytes:
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data


_RUNS = {
    "os.system": _call("os", "system", _TOUCH),
    "posix.system": _call("posix", "system", _TOUCH),
    "subprocess.call": _call("subprocess", "getoutput", _TOUCH),
    "eval": _call("builtins", "eval", _OPEN),
    "eval of Python 2": _call("__builtin__", "eval", _OPEN),
    "exec": _call("builtins", "exec", _OPEN),
    "open": _call("builtins", "open", CANARY, "w"),
    "io.open": _call("io", "open", CANARY, "w"),
    "numpy's runstring": _call("numpy.testing._private.utils", "runstring", _OPEN),
    "numpy.save": _call("numpy", "save", CANARY),
    "import": _call("builtins", "__import__", "antigravity"),
    "getattr": _call("builtins", "getattr", "os", "system"),
    "torch.load": _call("torch", "load", CANARY),
    "INST": f"(X{chr(len(_TOUCH))}\0\0\0{_TOUCH}ios\nsystem\n".encode("latin1"),
    "OBJ": b"(cos\nsystem\nX" + struct.pack("<I", len(_TOUCH)) + _TOUCH.encode() + b"o",
    "a name with dots": _named("numpy", "core.multiarray._reconstruct") + b"0" + _named("os", "system") + b"(tR",
    "an attribute of what is allowed": _named("collections", "defaultdict.__init__.__objclass__") + b"(tR",
    "NEWOBJ": b"csubprocess\nPopen\nX" + struct.pack("<I", len(_TOUCH)) + _TOUCH.encode() + b"\x85\x81",
    "nested": b"cos\nsystem\n" + _call("builtins", "str", _TOUCH) + b"\x85R",
    "EXT1": b"\x82\x01",
    "persistent": b"Psomething\n",
}
_DEEP = b")" + b"\x85" * 200_000
_LONG = b"T" + struct.pack("<i", 60_000) + b"a" * 60_000
_ENCODE = b"c_codecs\nencode\nq\x01"
_TEXT = b"X" + struct.pack("<I", 60_000) + b"a" * 60_000 + b"q\x02"
_LISTS = {
    "key of deep tuples": b"}" + _DEEP + b"Ns",
    "deep tuples": _DEEP,
    "deep lists": b"]" * 200_000 + b"a" * 199_999,
    "a memo at 2^31": b"Nr" + struct.pack("<I", 2**31 - 1),
    "a memo at 2^28": b"Nr" + struct.pack("<I", 2**28),
    "a memo at 10^18": b"Np1000000000000000000\n",
    "bytes of 2^40": b"\x8e" + struct.pack("<Q", 2**40),
    "an array of bytes of 2^34": b"\x96" + struct.pack("<Q", 2**34),
    "a text of 2^32": b"X" + b"\xff" * 4,
    "a frame of 2^40": b"\x95" + struct.pack("<Q", 2**40) + b"N",
    "a number of 2^31 bytes": b"\x8b" + struct.pack("<i", 2**31 - 1),
    "a number of 100,000 digits": b"L" + b"9" * 100_000 + b"L\n",
    "lists of lists": b"]q\x000" + b"(" + b"h\x00" * 5000 + b"l",
    "texts made again and again": _ENCODE + b"0" + _TEXT + b"0](" + b"h\x01h\x02X\x06\0\0\0latin1\x86R" * 20_000 + b"e",
    "lists made again and again": b"]q\x00(" + b"N" * 50_000 + b"e0(" + b"cbuiltins\nlist\nh\x00\x85R" * 20_000 + b"l",
    "an empty array of 10^12": b"cnumpy\nndarray\n\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85\x85R",
    "arrays of 10^9": (b"cnumpy\nndarray\n\x8a\x04" + (10**9).to_bytes(4, "little") + b"\x85\x85R") * 8,
    "a type with a state of its own": b"cnumpy\ndtype\n(U\x02V8K\x00K\x01tR(K\x03U\x01|NNNJ\0\0\0\x40K\x08K\x3ftb",
    "a type of objects": b"cnumpy\ndtype\n(U\x01OK\x00K\x01tR",
    "keys of one hash": b"}(" + b"".join(_long(k * (2**61 - 1)) + b"N" for k in range(40_000)) + b"u",
    "dictionaries doubled": b"}q\x00" + b"".join(b"0}K\x00h\x00sq\x00" for _ in range(50)),
}
_CHANGES_CODE = {
    "attributes of what is allowed": b"c_codecs\nencode\nN}U\x0c__defaults__NsU\x08__code__Ns\x86b",
    "a class of what is allowed": b"cscipy.sparse.csr\ncsr_matrix\nN}U\x05arrayNs\x86b",
    "a method of an object": b"ccopy_reg\n_reconstructor\n(cscipy.sparse.csr\ncsr_matrix\nc__builtin__\nobject\nNtR"
    b"}U\x05arrayc__builtin__\nlist\nsb",
}


def hostile() -> dict[str, bytes]:
    """Pickles that run code, take memory, or confuse, by what they do."""
    every = {**_RUNS, **_LISTS, **_CHANGES_CODE, "nothing but an end": b"", "no end": b"]" * 10}
    made = {name: b"\x80\x04" + code + (b"" if name == "no end" else b".") for name, code in every.items()}
    made["Python 3"] = pickle.dumps(_Runs(), protocol=0)
    return made


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (eval, (_OPEN,))


def changed_pickle(draw: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Opcodes left out, doubled, in another order, from another pickle, or with other numbers; or changed bytes."""
    codes = opcodes(data)
    if draw.random() < 0.3 or len(codes) < 3:
        return changed(draw, data, others)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(codes))
        codes[at : at + 1] = draw.choice(_EDITS)(draw, codes, at, others)
        codes = codes or [b"."]
    return b"".join(codes)


def opcodes(data: bytes) -> list[bytes]:
    """The bytes of each opcode, as far as they can be told apart."""
    file, starts = io.BytesIO(data), [0]
    with suppress(Exception):  # a broken pickle; the rest stays in one piece
        while code := _CODES.get(file.read(1)):
            if code.arg:
                file.readline() if code.name == "STRING" else code.arg.reader(file)
            starts.append(file.tell())
    ends = [*starts[1:], len(data)]
    return [data[first:last] for first, last in zip(starts, ends, strict=True) if last > first]


def _stack(draw: Random, codes: list[bytes], at: int, others: Sequence[bytes]) -> list[bytes]:
    return [codes[at], draw.choice((b"0", b"2", b"(", b"t", b"l", b"d", b"a", b"s", b"R", b"b", b"\x81", b"e", b"u"))]


def _value(draw: Random, codes: list[bytes], at: int, others: Sequence[bytes]) -> list[bytes]:
    values = (b"N", b"]", b"}", b")", b"K\x00", b"J\xff\xff\xff\xff", b"G\x7f\xf8" + b"\0" * 6, b"U\x01O", b"\x88")
    wide = b"\x8a\x09" + (draw.choice(NUMBERS) % 2**63).to_bytes(9, "little")
    return [draw.choice((*values, wide, *_RUNS.values(), *_CHANGES_CODE.values()))]


def _digits(draw: Random, codes: list[bytes], at: int, others: Sequence[bytes]) -> list[bytes]:
    code = codes[at]
    return [other_number(draw, code) if code[:1] in b"IL" else code[:1] + changed(draw, code[1:])]


def _taken(draw: Random, codes: list[bytes], at: int, others: Sequence[bytes]) -> list[bytes]:
    other = opcodes(draw.choice(others)) or [b"N"]
    first = draw.randrange(len(other))
    return other[first : first + draw.randrange(1, 12)]


_EDITS = (
    lambda draw, codes, at, others: [],
    lambda draw, codes, at, others: [codes[at], codes[at]],
    lambda draw, codes, at, others: [draw.choice(codes)],
    lambda draw, codes, at, others: [codes[at], draw.choice(codes)],
    _stack,
    _value,
    _digits,
    _digits,
    _taken,
)
