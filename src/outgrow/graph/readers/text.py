"""Readers of large text files: blocks of whole lines, and tables of numbers."""

from __future__ import annotations

import codecs
import gzip
import tempfile
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors

BLOCK_BYTES = 1 << 21
_LINE_BYTES = 1 << 24


class TextBlock(NamedTuple):
    """Whole lines of a file, and the number of the first line, from 1."""

    text: bytes
    line: int


def read_text_blocks(path: Path) -> Iterator[TextBlock]:
    """Yield the text of a file, decompressed if its name ends in ``.gz``, about `BLOCK_BYTES` at a time.

    Raises:
        InputError: The file cannot be read, is cut off, or has a line of more than 16 MiB.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    rest = list[bytes]()
    rest_bytes = 0
    line = 1
    refused = os_errors_as_input_errors(
        f"{path} cannot be read",
        needed="text, or text compressed by gzip",
        repair="check that the file is there and complete",
        also=(EOFError, zlib.error),
    )
    with refused, opener(path, "rb") as file:
        # Editors on Windows write a byte order mark, which would be part of the first id.
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        while piece := file.read(BLOCK_BYTES):
            # The last line of a piece is usually cut: it waits for the next piece.
            whole, end, tail = piece.rpartition(b"\n")
            rest_bytes += len(piece)
            if not end:
                rest.append(piece)
                # A binary file may have no line ends at all, and would be collected in memory.
                if rest_bytes > _LINE_BYTES:
                    raise _long_line_error(path, line)
                continue
            text = b"".join((*rest, whole, end))
            rest = [tail]
            rest_bytes = len(tail)
            yield TextBlock(text, line)
            line += text.count(b"\n")
    if rest_bytes:
        yield TextBlock(b"".join(rest), line)


def find_first_bad(lines: list[bytes], reads: Callable[[bytes], object], bad: type[Exception]) -> int | None:
    """Find the first line that cannot be read, by bisection.

    Args:
        lines: Lines that cannot be read together.
        reads: Reads text, and raises an exception if it cannot.
        bad: Type of that exception.

    Returns:
        The index of the line; None if every line can be read alone.
    """

    def is_unreadable(part: list[bytes]) -> bool:
        try:
            reads(b"\n".join((*part, b"")))
        except bad:
            return True
        return False

    first = 0
    last = len(lines)
    # Each step parses half of the rest, so all steps together cost one more pass over the block.
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (first, middle) if is_unreadable(lines[first:middle]) else (middle, last)
    return first if is_unreadable(lines[first:last]) else None


def read_numbers(path: Path, dtype: type[np.int64] | type[np.float32]) -> NDArray[Any]:
    """Read a table of comma-separated numbers without a header.

    Args:
        path: The file.
        dtype: Type of every number.

    Returns:
        ``[n, columns]``, mapped from a temporary file, so that a table larger than memory can be read in
        slices. In a table of floats, an empty field is NaN.

    Raises:
        InputError: A row with anything else than numbers (the message has its line), or a broken file.
    """
    from pyarrow.lib import ArrowInvalid

    width = rows = 0
    with tempfile.TemporaryFile() as file:
        for block in read_text_blocks(path):
            # The first row fixes the number of columns; the parser refuses rows with another.
            width = width or block.text.partition(b"\n")[0].count(b",") + 1
            try:
                part = _parse_table(block.text, width, dtype)
            except ArrowInvalid as error:
                raise _bad_row_error(path, block, width, dtype) from error
            file.write(part.data)
            rows += len(part)
        file.flush()
        if rows == 0:
            return np.empty((0, 1), dtype=dtype)
        # The mapping keeps the unnamed file alive; the system deletes it with the last reference.
        return np.memmap(file, dtype=dtype, mode="r", shape=(rows, width))


def _parse_table(text: bytes, width: int, dtype: type[np.generic]) -> NDArray[Any]:
    from pyarrow import csv

    names = [str(at) for at in range(width)]
    floats = dtype is np.float32
    table = csv.read_csv(
        BytesIO(text),
        csv.ReadOptions(column_names=names, block_size=BLOCK_BYTES),
        csv.ParseOptions(quote_char=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, np.dtype(dtype).name),
            null_values=["", "nan", "NaN"] if floats else [],
            check_utf8=False,
        ),
    )
    out = np.empty((table.num_rows, width), dtype=dtype)
    for at, column in enumerate(table.columns):
        out[:, at] = column.to_numpy()
    return out


def _long_line_error(path: Path, line: int) -> InputError:
    return InputError(
        f"{path}, line {line}: longer than any row",
        needed=f"lines of at most {_LINE_BYTES:,} bytes",
        got="more without an end",
        repair="check that the file holds text, one row a line",
    )


def _bad_row_error(path: Path, block: TextBlock, width: int, dtype: type[np.generic]) -> InputError:
    from pyarrow.lib import ArrowInvalid

    lines = block.text.split(b"\n")
    at = find_first_bad(lines, lambda text: text.strip() and _parse_table(text, width, dtype), ArrowInvalid) or 0
    return InputError(
        f"{path}, line {block.line + at}: not a row of the table",
        needed=f"{width} numbers of type {np.dtype(dtype).name}, separated by commas",
        got=repr(lines[at].decode(errors="replace")[:80]),
        repair="take the file from its publisher again",
    )
