"""Reader of the files of ``dgl.save_graphs``, from version 0.5 of DGL on; DGL itself is not imported.

A file is a header of 4096 bytes, the arrays that belong to no graph, and the graphs. A graph has a meta graph, whose
edges are the edge types, one adjacency matrix for each edge type, and named arrays of the nodes and edges of each
type. Numbers are little-endian; counts and lengths are of 64 bits. Nothing is ever unpickled, and arrays are mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.files import os_errors_as_input_errors
from outgrow.graph.builders.edge_checks import check_node_count
from outgrow.graph.readers.dgl import DglEdges, DglNodes, DglSource

DGL_SUFFIXES = (".bin", ".dgl")
_HEADER_BYTES = 4096
_FILE = 0xDD2E4FF046B4A13F
_HETERO_GRAPH = 0xDD589FBE35224ABF
_META_GRAPH = 0xDD3C5FFE20046ABF
_UNIT_GRAPH = 0xDD2E60F0F6B4A127
_COO, _CSR = 0xDD61FFD305DFF127, 0xDD6CD31205DFF127
_ARRAY = 0xDD5E40F096B4A13F
_COO_CODE, _CSR_CODE, _CSC_CODE = 1, 2, 4
_KINDS = {0: "i", 1: "u", 2: "f"}
_MOST_DIMENSIONS = 32
_REPAIR = "load the graph with DGL, and save it again with dgl.save_graphs"
Item = TypeVar("Item")


class _Ends(NamedTuple):
    """Sources and destinations of edges in the order of their numbers, and how many nodes there may be."""

    src: NDArray[Any]
    dst: NDArray[Any]
    num_src: int
    num_dst: int


class DglFileError(ValueError):
    """The file is cut off, or not of this form."""


def read_dgl_file(path: Path) -> DglSource:
    """Return the source of a file that holds one graph; its arrays are mapped.

    Raises:
        InputError: The file is broken, of another version, or holds several graphs.
    """
    needed = "a file that dgl.save_graphs has written, with one graph"
    with os_errors_as_input_errors(
        f"{path} cannot be read", needed=needed, repair=_REPAIR, also=(DglFileError, UnicodeDecodeError)
    ):
        if path.stat().st_size <= _HEADER_BYTES:
            raise DglFileError(f"a file of {path.stat().st_size} bytes")
        cursor = _Cursor(np.memmap(path, np.uint8, mode="r"))
        cursor.require(_FILE, "file")
        version, _, count = cursor.numbers(3)
        if version != 2:
            raise DglFileError(f"the format of version {version}; DGL before 0.5 wrote another one")
        if count == 1:
            cursor.at = _HEADER_BYTES
            cursor.at = cursor.number()
            return _read_graph(cursor, path.stem)
    raise InputError(f"{path} cannot be read", needed=needed, got=f"{count} graphs", repair="save one graph alone")


class _Cursor:
    """Position in the bytes of a file."""

    def __init__(self, held: NDArray[np.uint8]) -> None:
        self.held = held
        self.at = 0

    def take(self, count: int) -> NDArray[np.uint8]:
        if not 0 <= count <= len(self.held) - self.at:
            raise DglFileError(f"{count} bytes expected at byte {self.at} of {len(self.held)}")
        self.at += count
        return self.held[self.at - count : self.at]

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")).tobytes())

    def number(self) -> int:
        return int(self.unpack("Q")[0])

    def numbers(self, count: int) -> tuple[int, ...]:
        return self.unpack(f"{count}Q")

    def require(self, magic: int, what: str) -> None:
        if self.number() != magic:
            raise DglFileError(f"no {what} at byte {self.at - 8}")

    def text(self) -> str:
        return self.take(self.number()).tobytes().decode()

    def list_of(self, read: Callable[[], Item]) -> list[Item]:
        count = self.number()
        # Each takes at least the 8 bytes of a length.
        if count > (len(self.held) - self.at) // 8:
            raise DglFileError(f"a list of {count} at byte {self.at - 8}")
        return [read() for _ in range(count)]

    def array(self) -> NDArray[Any]:
        self.require(_ARRAY, "array")
        _, _, _, dimensions, code, bits, lanes = self.unpack("QiiiBBH")
        if not 0 <= dimensions <= _MOST_DIMENSIONS or lanes != 1 or code not in _KINDS or bits not in (8, 16, 32, 64):
            raise DglFileError(f"an array of type {code}, {bits} bits and {dimensions} dimensions at byte {self.at}")
        shape = self.unpack(f"{dimensions}q")
        size = int(self.unpack("q")[0])
        dtype = np.dtype(f"<{_KINDS[code]}{bits // 8}")
        expected = dtype.itemsize
        for length in shape:
            expected *= length
        if size != expected or min(shape, default=0) < 0:
            raise DglFileError(f"an array of shape {list(shape)} in {size} bytes at byte {self.at}")
        return self.take(size).view(dtype).reshape(shape)

    def named_arrays(self) -> dict[str, NDArray[Any]]:
        return dict(self.list_of(lambda: (self.text(), self.array())))


def _read_graph(cursor: _Cursor, name: str) -> DglSource:
    cursor.require(_HETERO_GRAPH, "graph")
    meta = _read_meta_graph(cursor)
    adjacency = cursor.list_of(lambda: _read_adjacency(cursor))
    counts = cursor.list_of(lambda: int(cursor.unpack("q")[0]))
    node_data = cursor.list_of(cursor.named_arrays)
    edge_data = cursor.list_of(cursor.named_arrays)
    node_types = cursor.list_of(cursor.text)
    edge_types = cursor.list_of(cursor.text)
    fits = len(edge_types) == len(adjacency) == len(meta.src) == len(edge_data) and len(node_types) == len(node_data)
    ends = np.concatenate([meta.src, meta.dst]) if fits else np.array([-1])
    if not fits or (len(ends) and not 0 <= int(ends.min()) <= int(ends.max()) < len(node_types)):
        raise DglFileError("types of nodes and edges that do not fit one another")
    if not counts:
        counts = [0] * len(node_types)
        for kinds, sizes in zip(zip(meta.src, meta.dst, strict=True), adjacency, strict=True):
            counts[kinds[0]], counts[kinds[1]] = sizes.num_src, sizes.num_dst
    if len(counts) != len(node_types) or min(counts, default=0) < 0:
        raise DglFileError(f"{len(counts)} numbers of nodes for {len(node_types)} types")
    rows = sum(len(array) for data in node_data for array in data.values() if array.ndim)
    check_node_count(sum(counts), rows + sum(len(each.src) for each in adjacency), name)
    nodes = [DglNodes(*each) for each in zip(node_types, counts, node_data, strict=True)]
    edges = [
        DglEdges((node_types[src], kind, node_types[dst]), each.src, each.dst, data)
        for src, dst, kind, each, data in zip(meta.src, meta.dst, edge_types, adjacency, edge_data, strict=True)
    ]
    return DglSource(nodes, edges, name)


def _read_meta_graph(cursor: _Cursor) -> _Ends:
    cursor.require(_META_GRAPH, "meta graph")
    return _read_csr(cursor)


def _read_adjacency(cursor: _Cursor) -> _Ends:
    """Return the edges of one type; if several formats are saved, the first one's."""
    cursor.require(_UNIT_GRAPH, "adjacency matrix")
    saved, _ = cursor.unpack("2q")
    # Files of before 0.6 have the number of one format there, others a mask of several.
    formats = saved & 0xFFFFFFFF if saved >> 32 else {1: _COO_CODE, 2: _CSR_CODE, 3: _CSC_CODE}.get(saved, 0)
    found: list[_Ends] = []
    for code in (_COO_CODE, _CSR_CODE, _CSC_CODE):
        if formats & code:
            _read_meta_graph(cursor)
            ends = _read_coo(cursor) if code == _COO_CODE else _read_csr(cursor)
            found.append(_Ends(ends.dst, ends.src, ends.num_dst, ends.num_src) if code == _CSC_CODE else ends)
    if not found:
        raise DglFileError(f"no adjacency matrix at byte {cursor.at}")
    return found[0]


def _read_coo(cursor: _Cursor) -> _Ends:
    cursor.require(_COO, "coordinates")
    num_columns, num_rows = cursor.unpack("2q")
    rows, columns, numbers = cursor.array(), cursor.array(), cursor.array()
    cursor.take(2)
    return _order_edges(rows, columns, numbers, num_rows, num_columns)


def _read_csr(cursor: _Cursor) -> _Ends:
    cursor.require(_CSR, "matrix of compressed rows")
    num_columns, num_rows = cursor.unpack("2q")
    ends, columns, numbers = cursor.array(), cursor.array(), cursor.array()
    cursor.take(1)
    falls = ends.ndim == 1 and (ends[1:] < ends[:-1]).any()
    if ends.ndim != 1 or len(ends) != num_rows + 1 or falls or int(ends[0]) != 0 or int(ends[-1]) != len(columns):
        raise DglFileError(f"ends of rows that are not those of {num_rows} rows at byte {cursor.at}")
    rows = np.repeat(np.arange(num_rows, dtype=columns.dtype), np.diff(ends))
    return _order_edges(rows, columns, numbers, num_rows, num_columns)


def _order_edges(
    rows: NDArray[Any], columns: NDArray[Any], numbers: NDArray[Any], num_rows: int, num_columns: int
) -> _Ends:
    if rows.ndim != 1 or rows.shape != columns.shape or len(numbers) not in (0, len(rows)):
        raise DglFileError(f"{len(rows)} rows, {len(columns)} columns and {len(numbers)} numbers of edges")
    if not len(numbers):
        return _Ends(rows, columns, num_rows, num_columns)
    if not np.array_equal(np.sort(numbers), np.arange(len(numbers))):
        raise DglFileError(f"numbers of edges that are not 0 to {len(numbers) - 1}")
    # Data of edges is in the order of these numbers.
    src, dst = np.empty_like(rows), np.empty_like(columns)
    src[numbers], dst[numbers] = rows, columns
    return _Ends(src, dst, num_rows, num_columns)
