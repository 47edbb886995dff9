"""Untrusted pickles of arrays, CSR matrices, lists and dictionaries; no other object is ever created.

A pickle is a program. Its instructions are read first: only those that build such values may be in it, each
length must be there in full, and what it remembers must be numbered without gaps. Then it runs, but the
functions it may call are those below, which only hold what they are given. Arrays are made from that
afterwards, once sizes and types fit.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.readers.matrices import csr_from_arrays

# Tuples can be nested as deep as there are many, and the hash of one recurses to its innermost.
_MOST_TUPLES = 1000
_BEYOND = 1 << 63
_TYPE = re.compile(r"[biuf](?:1|2|4|8)")
_VALUES = "INT BININT BININT1 BININT2 LONG LONG1 LONG4 NONE NEWTRUE NEWFALSE FLOAT BINFLOAT"
_TEXTS = "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES"
_HOLDERS = "EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS MARK POP POP_MARK"
_CALLS = "GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD PROTO FRAME STOP"
_TUPLES = ("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_PUTS, _GETS = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
_KNOWN = frozenset((*f"{_VALUES} {_TEXTS} {_HOLDERS} {_CALLS}".split(), *_TUPLES, *_PUTS, *_GETS))


def load_plain_pickle(path: Path) -> Any:
    """Return the content of a pickle: numbers, text, lists, dictionaries, tuples, `PickledCsr`, arrays.

    Args:
        path: The file, written by any version of Python, NumPy and SciPy.

    Raises:
        InputError: The pickle asks for something else.
        Exception: It is broken, which can raise nearly any exception.
    """
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    data = path.read_bytes()
    # Before anything runs: some instructions allocate by a length that the file merely claims.
    _check_instructions(data)
    made = _CheckedUnpickler(io.BytesIO(data), encoding="latin1").load()
    return made.to_array() if isinstance(made, _PickledArray) else made


@final
class PickledCsr:
    """State of a pickled SciPy matrix, from any version of SciPy."""

    # Not set by a constructor, which a pickle may leave out.
    _state: dict[str, Any]

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("a matrix with another state than that of SciPy")
        self._state = state

    def to_array(self) -> csr_array:
        """Return the matrix, whose indices are in range.

        Raises:
            ValueError: It is no matrix.
        """
        data, indices, indptr = (self._array_state(name) for name in ("data", "indices", "indptr"))
        # The name of the field depends on the version of SciPy.
        shape = self._known_state.get("_shape") or self._known_state.get("shape")
        if not isinstance(shape, tuple):
            raise ValueError("a matrix without a shape")
        return csr_from_arrays(data, indices, indptr, shape)

    @property
    def _known_state(self) -> dict[str, Any]:
        known: dict[str, Any] = vars(self).get("_state", {})
        return known

    def _array_state(self, name: str) -> NDArray[Any]:
        held = self._known_state.get(name)
        if not isinstance(held, _PickledArray):
            raise ValueError(f"a matrix without {name}")
        return held.to_array()


@final
class _PickledArray:
    """State of an array, as NumPy pickles it."""

    def __init__(self) -> None:
        self._state: object = None

    def __setstate__(self, state: object) -> None:
        self._state = state

    def to_array(self) -> NDArray[Any]:
        """Return the array.

        Raises:
            ValueError: Its state is not that of an array of numbers, or its data are not as long as its shape
                says.
        """
        if not isinstance(self._state, tuple) or len(self._state) != 5:
            raise ValueError("an array without data")
        _, shape, dtype, fortran, data = self._state
        # Strings of Python 2 are bytes, which the unpickler decodes as Latin-1.
        if isinstance(data, str):
            data = data.encode("latin1")
        sizes = isinstance(shape, tuple) and len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        if not sizes or not isinstance(dtype, _PickledDtype) or not isinstance(data, bytes):
            raise ValueError("an array of something else than numbers")
        kind = dtype.to_dtype()
        # A zero in the shape makes the product 0 whatever the other sizes are: each is checked by itself too.
        if math.prod(shape) * kind.itemsize != len(data) or max(shape, default=0) > len(data):
            raise ValueError(f"{len(data)} bytes for an array of {kind} and shape {list(shape)}")
        return np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")


@final
class _PickledDtype:
    """Type of an array's elements, as NumPy pickles it."""

    def __init__(self, code: object, *_: object) -> None:
        self._code = code
        self._order = "="

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError("a type with another state than that of a number")
        self._order = str(order)

    def to_dtype(self) -> np.dtype[Any]:
        """Return the type.

        Raises:
            ValueError: It is not a type of numbers.
        """
        if not isinstance(self._code, str) or not _TYPE.fullmatch(self._code):
            raise ValueError(f"an array of type {str(self._code)[:20]!r}")
        return np.dtype(self._order + self._code)


@final
class _PickledName:
    """Function or class that a pickle names: it may be called or passed on, but not changed.

    Args:
        call: What calling it does.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: object) -> Any:
        return self._call(*given)

    # Without this, BUILD would write attributes into an object that later pickles share.
    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a function or class that is to be changed")


def _refuse_call(*_: object) -> None:
    raise pickle.UnpicklingError("a call of what is only named in graphs")


def _make_array(kind: object, shape: object, code: object) -> _PickledArray:
    if kind is not _NDARRAY:
        raise pickle.UnpicklingError("an array of another class")
    return _PickledArray()


def _make_matrix(kind: object, base: object, state: object) -> PickledCsr:
    if kind is not PickledCsr or base is not _OBJECT or state is not None:
        raise pickle.UnpicklingError("an object that is not a sparse matrix")
    return PickledCsr()


def _make_dict(kind: object = None) -> dict[Any, Any]:
    if kind is not _LIST:
        raise pickle.UnpicklingError("a dictionary of something else than lists")
    return {}


@final
class _BytesFactory:
    """Function by which Python 3 writes bytes into a pickle of Python 2: text of the pickle, encoded.

    Args:
        room: The most bytes that all results may have together.
    """

    def __init__(self, room: int) -> None:
        self._room = room

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("bytes that are no text")
        # A pickle can name one long text many times, and so make far more bytes than it has.
        self._room -= len(text)
        if self._room < 0:
            raise pickle.UnpicklingError("the same bytes again and again")
        return text.encode("latin1")


_NDARRAY, _OBJECT, _LIST = _PickledName(_refuse_call), _PickledName(_refuse_call), _PickledName(_refuse_call)
_MADE: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": _PickledName(_make_array),
    "numpy._core.multiarray._reconstruct": _PickledName(_make_array),
    "numpy.ndarray": _NDARRAY,
    "numpy.dtype": _PickledName(_PickledDtype),
    "scipy.sparse.csr.csr_matrix": PickledCsr,
    "scipy.sparse._csr.csr_matrix": PickledCsr,
    "copy_reg._reconstructor": _PickledName(_make_matrix),
    "copyreg._reconstructor": _PickledName(_make_matrix),
    "__builtin__.object": _OBJECT,
    "builtins.object": _OBJECT,
    "collections.defaultdict": _PickledName(_make_dict),
    "__builtin__.list": _LIST,
    "builtins.list": _LIST,
}


@final
class _CheckedUnpickler(pickle.Unpickler):
    """Unpickler for a pickle whose instructions were checked."""

    def __init__(self, file: io.BytesIO, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._bytes = _PickledName(_BytesFactory(len(file.getbuffer())))

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement for an allowed name; refuse any other."""
        full = f"{module}.{name}"
        made = self._bytes if full == "_codecs.encode" else _MADE.get(full)
        if made is None:
            raise _forbidden_content_error(full)
        return made


def _check_instructions(data: bytes) -> None:
    """Refuse instructions that no such pickle has, lengths beyond the data, and gaps in the memo."""
    puts = tuples = 0
    for name, given in _iter_instructions(io.BytesIO(data)):
        if name not in _KNOWN:
            raise _forbidden_content_error(f"the instruction {name}")
        # Many long integers can have the same hash, which makes a dictionary of them quadratically slow.
        if isinstance(given, int) and not -_BEYOND <= given < _BEYOND:
            raise pickle.UnpicklingError("a number of more than 64 bits")
        tuples += name in _TUPLES
        if tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError(f"more than {_MOST_TUPLES} tuples")
        if name in _PUTS:
            # A high number would make the unpickler allocate a memo of that size. Python 2 counts from 1.
            if given is not None and given > puts + 1:
                raise pickle.UnpicklingError(f"the memory {given} after {puts}")
            puts += 1


def _iter_instructions(file: io.BytesIO) -> Iterator[tuple[str, Any]]:
    """Yield name and argument of each instruction like `pickletools.genops`; STRING may hold any bytes."""
    known = {code.code: code for code in pickletools.opcodes}
    name = ""
    while name != "STOP":
        code = known.get(file.read(1).decode("latin1"))
        if code is None:
            raise pickle.UnpicklingError("no such instruction, or no end")
        name = code.name
        yield name, file.readline() if name == "STRING" else code.arg and code.arg.reader(file)


def _forbidden_content_error(got: str) -> InputError:
    return InputError(
        "a pickle holds what no graph needs, and is not opened",
        needed="arrays, CSR matrices, lists and dictionaries",
        got=got[:200],
        repair="do not trust this file; take it from its publisher",
    )
