"""Unpickler of arrays, CSR matrices, lists and dictionaries, and nothing else, for files that are not trusted.

A pickle is a program. Here it may name, call and give a state to nothing but what is listed below, and even
that is not done: it is noted, and arrays are made of the notes once their types and sizes fit.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.readers.matrices import csr_from_arrays

_CODES = {code.name: ord(code.code) for code in pickletools.opcodes}
_NUMBER_TYPE = re.compile(r"[biuf](?:1|2|4|8)")
_INSTRUCTIONS = """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 NONE NEWTRUE NEWFALSE FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
    UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM
    SETITEMS MARK POP POP_MARK EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET
    LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD PROTO FRAME STOP
"""


def load_plain_pickle(path: Path) -> Any:
    """Return an array of numbers, a CSR matrix with indices in range, or numbers, text, lists and dictionaries.

    Args:
        path: The file, written by any version of Python, NumPy and SciPy.

    Raises:
        InputError: The pickle asks for something else.
        Exception: It is broken, which can raise nearly any exception.
    """
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    made = _Unpickler(path.read_bytes()).load()
    if not isinstance(made, _Note):
        return made
    return _make_matrix(made) if made.kind is _Name.CSR_MATRIX else _make_array(made)


class _Name(Enum):
    """What a pickle may name, under the names of all versions."""

    RECONSTRUCT_ARRAY = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
    ARRAY = ("numpy.ndarray",)
    DTYPE = ("numpy.dtype",)
    CSR_MATRIX = ("scipy.sparse.csr.csr_matrix", "scipy.sparse._csr.csr_matrix")
    RECONSTRUCT_OBJECT = ("copy_reg._reconstructor", "copyreg._reconstructor")
    OBJECT = ("__builtin__.object", "builtins.object")
    DEFAULTDICT = ("collections.defaultdict",)
    LIST = ("__builtin__.list", "builtins.list")
    ENCODE = ("_codecs.encode",)


@final
@dataclass(eq=False, slots=True)
class _Note:
    """An array, a type or a matrix that a pickle asks for."""

    kind: _Name
    code: str = ""
    state: object = None


class _WholeReads(io.BytesIO):
    """A file that refuses reads beyond its end; the unpickler alone takes what it gets."""

    def read(self, size: int | None = -1, /) -> bytes:
        got = super().read(size)
        if size is not None and len(got) < size:
            raise pickle.UnpicklingError(f"{len(got)} of {size} bytes: no end, or a length that is not there")
        return got


class _SafeKeyDict(dict[Any, Any]):
    """A dictionary whose keys are text and numbers of 64 bits.

    The hash of a deep tuple overflows the C stack and ends the process; larger numbers can be chosen to have
    one hash, which makes a dictionary of them quadratic.
    """

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> None:
        if type(key) is not str and not (type(key) is int and -(1 << 63) <= key < 1 << 63):
            raise pickle.UnpicklingError(f"a key that is {type(key).__name__}")
        super().__setitem__(key, value)


class _DenseMemo(list[Any]):
    """The memo, whose positions have no gaps: 8 bytes for each, where a dictionary takes a hundred."""

    def __getitem__(self, number: Any) -> Any:
        # Protocol 0 can name a negative number, which a list counts from its end.
        if number < 0:
            raise pickle.UnpicklingError(f"the memory {number}")
        return super().__getitem__(number)

    def __setitem__(self, number: Any, value: Any) -> None:
        if number > len(self) + 1:
            raise pickle.UnpicklingError(f"the memory {number} after {len(self)}")
        # Two at first, where Python 2 counts from 1.
        self.extend([None] * (number + 1 - len(self)))
        super().__setitem__(number, value)


@final
class _Unpickler(pickle._Unpickler):
    """The unpickler of Python's library that is written in Python, with a short table of instructions.

    That in C allocates memory for lengths and memo positions that a pickle only claims, and knows all
    instructions, so that a pickle would have to be read once more before it is run.

    Args:
        data: The pickle.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Any]]  # set below: what of it is allowed

    def __init__(self, data: bytes) -> None:
        super().__init__(_WholeReads(data), encoding="latin1")
        self.memo, self._room = _DenseMemo(), len(data)

    def find_class(self, module: str, name: str) -> _Name:
        """Return the entry of an allowed name; refuse any other."""
        for known in _Name:
            if f"{module}.{name}" in known.value:
                return known
        raise _forbidden_content_error(f"{module}.{name}")

    def _note_call(self) -> None:
        given, called = self.stack.pop(), self.stack.pop()
        self.stack.append(self._result_of_call(called, given))

    def _result_of_call(self, called: object, given: object) -> object:
        match called, given:
            case _Name.RECONSTRUCT_ARRAY, (_Name.ARRAY, _, _):
                return _Note(_Name.ARRAY)
            case _Name.DTYPE, (str(code), *_):
                return _Note(_Name.DTYPE, code)
            case (_Name.CSR_MATRIX, ()) | (_Name.RECONSTRUCT_OBJECT, (_Name.CSR_MATRIX, _Name.OBJECT, None)):
                return _Note(_Name.CSR_MATRIX)
            case _Name.DEFAULTDICT, (_Name.LIST,):
                return _SafeKeyDict()
            # How Python 3 writes bytes into a pickle of Python 2. A pickle can name one long text many times, and
            # so make far more bytes than it has.
            case _Name.ENCODE, (str(text), "latin1"):
                self._room -= len(text)
                if self._room < 0:
                    raise pickle.UnpicklingError("the same bytes again and again")
                return text.encode("latin1")
        raise pickle.UnpicklingError("a call of what is only named in graphs")

    def _note_state(self) -> None:
        state, noted = self.stack.pop(), self.stack[-1]
        if not isinstance(noted, _Note):
            raise pickle.UnpicklingError("a state for what has none")
        noted.state = state

    def _make_dictionary(self) -> None:
        items, made = self.pop_mark(), _SafeKeyDict()
        for key, value in zip(items[::2], items[1::2], strict=True):
            made[key] = value
        self.stack.append(made)


class _AllowedInstructions(dict[int, Any]):
    """What each instruction that may be in a pickle does."""

    def __missing__(self, code: int) -> Any:
        raise _forbidden_content_error(f"the instruction {bytes([code])!r}")


_Unpickler.dispatch = _AllowedInstructions(
    {_CODES[name]: pickle._Unpickler.dispatch[_CODES[name]] for name in _INSTRUCTIONS.split()}
    | dict.fromkeys((_CODES["REDUCE"], _CODES["NEWOBJ"]), _Unpickler._note_call)
    | {_CODES["BUILD"]: _Unpickler._note_state, _CODES["DICT"]: _Unpickler._make_dictionary}
    | {_CODES["EMPTY_DICT"]: lambda unpickler: unpickler.stack.append(_SafeKeyDict())}
)


def _make_matrix(noted: _Note) -> csr_array:
    state = noted.state if isinstance(noted.state, dict) else {}
    data, indices, indptr = (_make_array(state.get(name)) for name in ("data", "indices", "indptr"))
    # The name of the field depends on the version of SciPy.
    shape = state.get("_shape") or state.get("shape")
    # An error shows the shape, whose text could have any length: a list can hold one list many times.
    if not isinstance(shape, tuple) or not all(type(n) is int for n in shape):
        raise ValueError("a matrix without a shape")
    return csr_from_arrays(data, indices, indptr, shape)


def _make_array(noted: object) -> NDArray[Any]:
    match noted:
        case _Note(
            _Name.ARRAY,
            state=(_, tuple(shape), _Note(_Name.DTYPE) as dtype, fortran, str() | bytes() as data),
        ):
            kind = _make_dtype(dtype)
        case _:
            raise ValueError("an array of something else than numbers, or without data")
    # Strings of Python 2 are bytes, which the unpickler decodes as Latin-1.
    data = data.encode("latin1") if isinstance(data, str) else data
    # A zero in the shape makes the product 0 whatever the other sizes are: each is checked by itself too.
    if len(shape) > 4 or not all(type(n) is int and 0 <= n <= len(data) for n in shape):
        raise ValueError(f"{len(data)} bytes for an array of another shape")
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for an array of {kind} and shape {list(shape)}")
    return np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")


def _make_dtype(noted: _Note) -> np.dtype[Any]:
    match noted.state:
        case (_, "<" | ">" | "=" | "|" as order, *_) if _NUMBER_TYPE.fullmatch(noted.code):
            return np.dtype(order + noted.code)
    raise ValueError(f"an array of type {noted.code[:20]!r}")


def _forbidden_content_error(got: str) -> InputError:
    return InputError(
        "a pickle holds what no graph needs, and is not opened",
        needed="arrays, CSR matrices, lists and dictionaries",
        got=got[:200],
        repair="do not trust this file; take it from its publisher",
    )
