"""Text files in blocks of whole lines, decompressed while they are read."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors

BLOCK_BYTES = 1 << 21
CODECS: dict[str, Literal["gzip", "zstd"]] = {".gz": "gzip", ".zst": "zstd"}
"""Codec of pyarrow for each ending of compressed files."""
_LINE_BYTES = 1 << 24
_WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class TextBlock(NamedTuple):
    """Whole lines of a file, and the number of the first line, from 1."""

    text: bytes
    line: int


class TextFile:
    """Text file that can be read in blocks, repeatedly.

    Args:
        path: The file; one that ends in ``.gz`` or ``.zst`` is decompressed.

    Attributes:
        bytes_read: Bytes of the file that the newest pass has read, compressed if the file is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0

    def read_blocks(self, *, quoted: bool = False) -> Iterator[TextBlock]:
        """Yield the text, about `BLOCK_BYTES` at a time, without its byte order mark.

        Args:
            quoted: Whether values in double quotes may hold line ends, at which no block ends.

        Raises:
            InputError: The file cannot be read, is cut off, is of UTF-16 or no text, or has a line of more than 16 MiB.
        """
        rest = list[bytes]()
        rest_bytes = 0
        line = 1
        for piece in self._read_pieces():
            rest_bytes += len(piece)
            rest.append(piece)
            if b"\n" not in piece:
                # A binary file may have no line ends at all, and would be collected in memory.
                if rest_bytes > _LINE_BYTES:
                    raise self._long_line_error(line)
                continue
            # The last line of a piece is usually cut: it waits for the next piece.
            text = rest[0] if len(rest) == 1 else b"".join(rest)
            end = _find_end(text, quoted=quoted)
            if end:
                yield TextBlock(text[:end], line)
                # Many times as fast as the method of bytes, which counts for a good part of a conversion.
                line += int(np.count_nonzero(np.frombuffer(text, np.uint8, end) == ord("\n")))
            rest = [text[end:]]
            rest_bytes = len(text) - end
        if rest_bytes:
            yield TextBlock(b"".join(rest), line)

    def _read_pieces(self) -> Iterator[bytes]:
        import pyarrow as pa

        codec = CODECS.get(self.path.suffix.lower())
        refused = os_errors_as_input_errors(
            f"{self.path} cannot be read",
            needed=f"text compressed by {codec}" if codec else "text",
            repair="check that the file is there and complete",
        )
        self.bytes_read = 0
        with refused, ExitStack() as stack:
            raw = stack.enter_context(pa.OSFile(str(self.path), "rb"))
            stream: Any = stack.enter_context(pa.CompressedInputStream(raw, codec)) if codec else raw
            first = True
            while piece := stream.read(BLOCK_BYTES):
                self.bytes_read = raw.tell()
                yield self._without_mark(piece) if first else piece
                first = False

    def _without_mark(self, piece: bytes) -> bytes:
        encoding = next((name for mark, name in _WIDE.items() if piece.startswith(mark)), None)
        if encoding or b"\0" in piece[: 1 << 12]:
            got = f"text of {encoding}" if encoding else "bytes of 0, as in UTF-16 or in no text at all"
            raise encoding_error(self.path, 1, encoding or "UTF-16", got)
        # Editors on Windows write a mark, which would be part of the first value.
        return piece.removeprefix(codecs.BOM_UTF8)

    def _long_line_error(self, line: int) -> InputError:
        return InputError(
            f"{self.path}, line {line}: longer than any row",
            needed=f"lines of at most {_LINE_BYTES:,} bytes",
            got="more without an end",
            repair="check that the file holds text, one row a line",
        )


def open_bytes(text: bytes) -> Any:
    """Return a file of pyarrow that holds a copy of some text.

    Threads of pyarrow may drop a file after the call that has read it. If it held an object of Python, one that does so
    while the interpreter ends would abort the process.
    """
    import pyarrow as pa

    buffer = pa.allocate_buffer(len(text))
    memoryview(buffer).cast("B")[:] = text
    return pa.BufferReader(buffer)


def encoding_error(path: Path, line: int, encoding: str, got: str) -> InputError:
    """Return the error of text of another encoding."""
    packed = CODECS.get(path.suffix.lower())
    plain = path.stem if packed else path.name
    source = f"{packed} -dc {path.name} | iconv -f {encoding}" if packed else f"iconv -f {encoding} {path.name}"
    return InputError(
        f"{path}, line {line}: not UTF-8",
        needed="text of UTF-8",
        got=got,
        repair=f"convert it, if it is {encoding}: {source} -t UTF-8 > utf8-{plain}",
    )


def _find_end(text: bytes, *, quoted: bool) -> int:
    """Return where the last whole line ends, 0 if none does."""
    end = text.rfind(b"\n") + 1
    # A value that is longer than any line is no value: a quote was not closed, and lines are taken as they are.
    # The search for a byte is several times as fast as its count.
    if not quoted or len(text) > _LINE_BYTES or b'"' not in text or not text.count(b'"', 0, end) % 2:
        return end
    data = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    ends = np.flatnonzero(data == ord("\n"))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def split_records(text: bytes, *, quoted: bool) -> list[tuple[int, bytes]]:
    """Return the records of a text, each with the number of its first line, from 0."""
    records: list[tuple[int, bytes]] = []
    open_quote = False
    for number, line in enumerate(text.split(b"\n")):
        if open_quote:
            at, begun = records[-1]
            records[-1] = (at, begun + b"\n" + line)
        else:
            records.append((number, line))
        if quoted and line.count(b'"') % 2:
            open_quote = not open_quote
    return records
