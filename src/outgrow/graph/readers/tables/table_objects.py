"""Tables in memory as graphs: frames of pandas and others, which Arrow reads, of edges alone or of nodes and edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import GraphSource
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.options import NODE_AND_EDGE_OPTIONS, TableOptions
from outgrow.graph.readers.tables.table import Table
from outgrow.graph.readers.tables.table_graph import TABLE_GRAPH_OPTIONS, TableGraphSource
from outgrow.graph.readers.tables.table_views import MemoryTable
from outgrow.graph.readers.tables.typed_folder import make_typed_source
from outgrow.graph.readers.typed_parts import Relation

_STREAM = "__arrow_c_stream__"
_PARTS = {"nodes", "edges"}
_NAME = "tables"


def is_table_object(data: object) -> bool:
    """Whether an object is a frame, nodes and edges of frames in a dictionary, or a pair of frames."""
    if isinstance(data, Mapping):
        return True
    if isinstance(data, tuple):
        return len(data) == 2 and all(map(_is_frame, data))
    return _is_frame(data)


def open_table_object(data: Any, options: TableOptions) -> GraphSource:
    """Return the source of tables in memory.

    Args:
        data: A frame of edges; a pair of frames, nodes and edges; ``{"nodes": frame, "edges": frame}``; or, of several
            types, ``{"nodes": {"paper": frame}, "edges": {("paper", "cites", "paper"): frame}}``. Frames are of
            pandas, pyarrow, polars, or anything else that has Arrow's stream interface.
        options: Options of tables, as for files.

    Raises:
        InputError: A dictionary with other keys or values, or an option that does not apply.
    """
    if _is_frame(data):
        options.refuse_all_but(("num_nodes", "relabel", "columns", "edge_features", "time_column"), "a table of edges")
        return EdgeTableSource(_to_table(data, "edges"), options)
    nodes, edges = data if isinstance(data, tuple) else _take_parts(data)
    if _is_frame(nodes) and _is_frame(edges):
        options.refuse_all_but(TABLE_GRAPH_OPTIONS, "tables of nodes and edges")
        return TableGraphSource(None, _to_table(nodes, "nodes"), _to_table(edges, "edges"), options)
    if not isinstance(nodes, Mapping) or not isinstance(edges, Mapping):
        raise _form_error(f"nodes of {type(nodes).__name__}, edges of {type(edges).__name__}")
    options.refuse_all_but(NODE_AND_EDGE_OPTIONS, "tables of types")
    return make_typed_source(
        _NAME,
        {str(kind): _to_table(frame, f"nodes of {kind}") for kind, frame in nodes.items()},
        {_take_relation(key): _to_table(frame, f"edges {key}") for key, frame in edges.items()},
        options,
    )


def _is_frame(data: object) -> bool:
    return getattr(data, _STREAM, None) is not None


def _to_table(frame: Any, name: str) -> Table:
    import pyarrow as pa

    if not _is_frame(frame):
        raise _form_error(f"{name} of {type(frame).__name__}")
    if type(frame).__module__.partition(".")[0] == "pandas" and any(each is not None for each in frame.index.names):
        # An index with a name is a column: ids often are.
        frame = frame.reset_index()
    elif type(frame).__module__.partition(".")[0] == "pandas":
        frame = frame.reset_index(drop=True)
    try:
        return MemoryTable(pa.table(frame), name)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"the table of {name} cannot be read",
            needed="columns of one type each",
            got=str(error).splitlines()[0][:200],
            repair="convert the column, for example with astype(str)",
        ) from error


def _take_parts(data: Mapping[Any, Any]) -> tuple[Any, Any]:
    if set(data) != _PARTS:
        raise _form_error(f"a dictionary of {', '.join(map(str, data)) or 'nothing'}")
    return data["nodes"], data["edges"]


def _take_relation(key: Any) -> Relation:
    parts = key.split("__") if isinstance(key, str) else key
    if not (
        isinstance(parts, tuple | list) and len(parts) == 3 and all(isinstance(part, str) and part for part in parts)
    ):
        raise _form_error(f"edges {key!r}")
    return parts[0], parts[1], parts[2]


def _form_error(got: str) -> InputError:
    return InputError(
        "the tables cannot be read",
        needed='{"nodes": frame, "edges": frame}, or {"nodes": {TYPE: frame}, "edges": {(SRC, RELATION, DST): frame}}',
        got=got,
        repair="give frames in one of these forms, or a frame of edges alone",
    )
