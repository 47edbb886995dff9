"""Detection of the reader for an object: graphs of PyG, DGL and NetworkX, data sets of these, matrices and tables."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sized
from typing import Any

from scipy.sparse import issparse

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import GraphSource
from outgrow.graph.readers.split_source import SPLIT_OPTIONS, apply_split_options
from outgrow.graph.readers.tables.options import TableOptions

KNOWN_OBJECTS = (
    "a name, a path, a Data or HeteroData of PyG, a DGLGraph, a data set or list of one of these, a NetworkX graph, "
    "a SciPy sparse matrix, a table of edges (pandas, pyarrow, polars), or tables of nodes and edges"
)
_DATASETS = ("Dataset", "DGLDataset")


def open_object(data: object, options: TableOptions | None = None) -> GraphSource:
    """Return the reader of a graph in an object of another package, which is not imported.

    Args:
        data: The object.
        options: Options for tables; of other objects those of the split apply.

    Raises:
        InputError: Another object, several graphs, or an option that does not apply.
    """
    given = options or TableOptions()
    source = _open_form(data, given.without_build_options())
    given.apply_build_options(source)
    return source


def _open_form(data: object, options: TableOptions) -> GraphSource:
    from outgrow.graph.readers.tables.table_objects import is_table_object, open_table_object

    if is_table_object(data):
        return open_table_object(data, options)
    options.refuse_all_but(SPLIT_OPTIONS, f"a graph made of {type(data).__name__}")
    return apply_split_options(_open_graph(data), options)


def _open_graph(data: Any) -> GraphSource:
    data, name = _take_only_graph(data)
    # Decided by name: `isinstance` would import packages that may not be installed.
    packages = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    if "torch_geometric" in packages:
        from outgrow.graph.readers.pyg import PygSource

        return PygSource(data, name or "pyg")
    if "dgl" in packages and getattr(data, "canonical_etypes", None) is not None:
        from outgrow.graph.readers.dgl import open_dgl_graph

        return open_dgl_graph(data, name or "dgl")
    if "networkx" in packages:
        from outgrow.graph.readers.networkx import NetworkxSource

        return NetworkxSource(data)
    if issparse(data):
        from outgrow.graph.readers.scipy_matrix import ScipySource

        return ScipySource(data)
    raise InputError(
        f"cannot read a graph from {type(data).__name__}",
        needed=KNOWN_OBJECTS,
        got=f"{type(data).__module__}.{type(data).__qualname__}",
        repair="give arrays to og.from_arrays",
    )


def _take_only_graph(data: Any) -> tuple[Any, str]:
    """Return the graph of a data set or of a list of one, and its name; other objects as they are."""
    is_dataset = any(kind.__name__ in _DATASETS for kind in type(data).__mro__) and isinstance(data, Sized)
    if not is_dataset and not isinstance(data, list | tuple):
        return data, ""
    if len(data) != 1:
        raise InputError(
            f"{type(data).__name__} holds {len(data)} graphs",
            needed="one graph, whose nodes or links are to be predicted",
            got=f"{len(data)} graphs",
            repair="choose one: og.load(graphs[0]); several are one with torch_geometric.data.Batch.from_data_list",
        )
    graph = data[0]
    if not is_dataset:
        return _take_only_graph(graph) if isinstance(graph, list | tuple) else (graph, "")
    name = getattr(data, "name", None)
    return _with_given_split(graph, data), name if isinstance(name, str) else type(data).__name__


def _with_given_split(graph: Any, dataset: Any) -> Any:
    """Return the graph of an OGB data set with its split, which lies beside it."""
    read_split = getattr(dataset, "get_idx_split", None)
    split = None if read_split is None else read_split()
    if not isinstance(split, Mapping) or any(isinstance(nodes, Mapping) for nodes in split.values()):
        return graph
    changed = copy.copy(graph)
    for part, nodes in split.items():
        setattr(changed, f"{'val' if part == 'valid' else part}_idx", nodes)
    return changed
