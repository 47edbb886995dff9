"""Files of nodes, for `outgrow predict --nodes`: numbers, or ids where the graph has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.graph.node_ids import ArrowArray

_NODE, _ID, _TYPE = "node", "id", "type"


def read_nodes(path: Path, graph: Graph) -> Tensor:
    """Read nodes of a graph.

    An .npy array has numbers, a mask, or ids that are texts. A .parquet table has a column ``node`` of numbers, or a
    column ``id``, and beside it ``type`` where types share ids. A text has an id in each line, which is a number where
    the graph has no ids.

    Returns:
        ``[n]`` int64 or bool; whether numbers are those of nodes is not checked.

    Raises:
        InputError: The file is missing or holds something else, or no node has an id.
    """
    if not path.is_file():
        raise _error(path, "a file", "none" if not path.exists() else "a directory")
    try:
        values = _read_array(path, graph)
    except InputError as error:
        raise InputError(f"{path}: {error.what}", needed=error.needed, got=error.got, repair=error.repair) from error
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise _error(path, "node ids", f"{type(error).__name__}: {str(error)[:200]}") from error
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise _error(path, "one whole number or id for each node", f"shape {values.shape} of {values.dtype}")
    return torch.from_numpy(np.ascontiguousarray(values if values.dtype.kind == "b" else values.astype(np.int64)))


def _read_array(path: Path, graph: Graph) -> NDArray[Any]:
    if path.suffix == ".npy":
        array: NDArray[Any] = np.load(path, allow_pickle=False)
        return graph.index_of(array.tolist()).numpy() if array.dtype.kind == "U" and array.ndim == 1 else array
    if path.suffix == ".parquet":
        return _read_table(path, graph)
    text = path.read_text("utf-8-sig")
    if graph.ids is not None:
        # An id may have blanks within or around it; only empty lines say nothing.
        return graph.index_of([line for line in text.splitlines() if line]).numpy()
    return np.array([int(line) for line in text.split()], dtype=np.int64)


def _read_table(path: Path, graph: Graph) -> NDArray[Any]:
    from pyarrow import parquet

    names = parquet.read_schema(path).names
    if _NODE in names or _ID not in names:
        numbers: NDArray[Any] = parquet.read_table(path, columns=[_NODE])[_NODE].to_numpy()
        return numbers
    table = parquet.read_table(path, columns=[name for name in (_ID, _TYPE) if name in names])
    ids: ArrowArray = table[_ID].combine_chunks()
    if ids.null_count:
        raise ValueError(f"{ids.null_count} rows without an id")
    if _TYPE not in names or not graph.node_types:
        return graph.index_of(ids.to_pylist()).numpy()
    return _find_of_types(graph, ids, table[_TYPE].combine_chunks())


def _find_of_types(graph: Graph, ids: ArrowArray, types: ArrowArray) -> NDArray[Any]:
    kinds = np.array(types.to_pylist(), dtype=object)
    found = np.empty(len(ids), np.int64)
    for kind in dict.fromkeys(kinds.tolist()):
        rows = np.flatnonzero(kinds == kind)
        found[rows] = graph.index_of(ids.take(rows).to_pylist(), node_type=str(kind)).numpy()
    return found


def _error(path: Path, needed: str, got: str) -> InputError:
    return InputError(
        f"cannot read nodes from {path}",
        needed=needed,
        got=got,
        repair=f"give an .npy array, a .parquet table with a column {_NODE!r} or {_ID!r}, or one id in a line of text",
    )
