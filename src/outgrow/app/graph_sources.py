"""Readers for what a user may give as a graph: arrays, objects of other packages, names and paths."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from scipy.sparse import csr_array, issparse

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.synonyms import accept_synonyms
from outgrow.core.validation import validate_choice, validate_types
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.datasets import ResolvedSource, resolve_source
from outgrow.graph.graph import Graph
from outgrow.graph.readers.arrays import ArraySource
from outgrow.graph.readers.conversions import to_feature_sizes
from outgrow.graph.readers.objects import open_object
from outgrow.graph.readers.source import GraphSource, NodeTableSource
from outgrow.graph.readers.split_source import with_mask_tables
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.times import has_dates, to_times
from outgrow.graph.store.reader import is_store, open_store, write_store

_SPLITS = ("train", "val", "test")


class EdgeOptions(TypedDict, total=False):
    """Features of edges, times, and names of PyG for arguments of `from_arrays`."""

    edge_features: Any
    edge_feature_sizes: Any
    edge_time: Any
    node_time: Any
    edge_type: Any
    edge_weight: Any
    edge_attr: Any


@accept_synonyms(edge_type="relation", edge_weight="weight", edge_attr="edge_features")
@check_arguments()
def from_arrays(
    edge_index: Any,
    *,
    features: Any = None,
    labels: Any = None,
    split: Mapping[str, Any] | None = None,
    num_nodes: int | None = None,
    relation: Any = None,
    weight: Any = None,
    undirected: bool = False,
    **edge_options: Unpack[EdgeOptions],
) -> Graph:
    """Make a graph from arrays or tensors.

    Args:
        edge_index: ``[2, E]`` integer, sources then destinations.
        features: ``[V, D]`` floating, or a SciPy sparse matrix of that shape. Half precision is kept, and
            widened for computation.
        labels: ``[V]`` integer with -1 for unknown, or ``[V, C]`` zeros and ones. Floats that hold whole
            numbers are read as classes, NaN as unknown, with a warning. Other floats are the targets of a
            regression, ``[V]`` or ``[V, K]``, NaN where unknown.
        split: ``{"train": ids, "val": ids, "test": ids}``; each ``[n]`` ids or a ``[V]`` mask, of booleans or
            of bytes that hold only 0 and 1. Masks ``[V, K]`` are ``K`` splits: the first is chosen, and all are in
            ``graph.splits``.
        num_nodes: ``V``; None to take it from features, labels or the largest id.
        relation: ``[E]`` integer type of each edge.
        weight: ``[E]`` weight of each edge; kept as float32.
        undirected: Add the missing reverse of every edge, of the same weight and features.
        **edge_options: ``edge_features``, ``[E, De]``: floating, whose type is kept; or integer codes of categories,
            from 0. ``edge_feature_sizes``: the number of categories of each column, ``De`` numbers, 0 for a column of
            numbers; without, integers are codes up to the largest one, with a warning. ``edge_time``, ``[E]``, and
            ``node_time``, ``[V]``: integers, whole numbers or ``datetime64``, for temporal draws. ``edge_type`` is also
            ``relation``, ``edge_weight`` also ``weight`` and ``edge_attr`` also ``edge_features``, as PyG calls them.

    Raises:
        InputError: The arrays do not fit each other, or one is given by both of its names.
    """
    # The decorator has already translated the synonyms that exist.
    known = {**inspect.signature(from_arrays).parameters, **EdgeOptions.__annotations__}
    del known["edge_options"]
    for name in edge_options:
        validate_choice("option of og.from_arrays", name, known)
    edge_features: Any = edge_options.get("edge_features")
    sizes = to_feature_sizes(_to_array(edge_options.get("edge_feature_sizes")))
    # NumPy has no bfloat16: such features pass through float32, which holds them exactly.
    is_bfloat16, are_bfloat16 = (_is_bfloat16(each) for each in (features, edge_features))
    given = {} if split is None else _split_arrays(split)
    times = {name: _to_array(edge_options.get(name)) for name in ("edge_time", "node_time")}
    tables = NodeTableSource(
        num_nodes=num_nodes,
        features=_to_feature_rows(features.float() if is_bfloat16 else features),
        labels=_to_array(labels),
        edge_feature_sizes=sizes,
        node_time=None if times["node_time"] is None else to_times(times["node_time"], "node_time"),
    )
    tables = with_mask_tables(tables, given, "the split")
    source = ArraySource(
        _to_array(edge_index),
        tables,
        relation=_to_array(relation),
        weight=_to_array(weight),
        edge_features=_to_array(edge_features.float() if are_bfloat16 else edge_features),
        edge_time=times["edge_time"],
        times_are_dates=has_dates(times),
    )
    graph = assemble_graph(source, undirected=undirected)
    if are_bfloat16 and graph.edge_features is not None:
        narrow = replace(graph.topology, edge_features=graph.edge_features.to(torch.bfloat16))
        graph = replace(graph, topology=narrow)
    if is_bfloat16 and isinstance(graph.features, torch.Tensor):
        return replace(graph, features=graph.features.to(torch.bfloat16))
    return graph


@check_arguments(unchecked=("graph",))
def save_graph(graph: Graph, dest: str | Path, *, overwrite: bool = False) -> Graph:
    """Write a graph in memory as a store, which `load` opens memory-mapped and `train` can name in its run.

    All of the graph is kept: weights, relations, types, names, split, sparse features, half precision.

    Args:
        graph: The graph; it is checked first.
        dest: Directory of the store, created atomically: a crash leaves the former store or none.
        overwrite: Whether to replace an existing store.

    Returns:
        The graph of the new store, memory-mapped.

    Raises:
        InputError: The graph is broken, ``dest`` exists, or the disk is full.
    """
    validate_types({"graph": graph}, {"graph": Graph})
    write_store(graph, Path(dest), overwrite=overwrite)
    return open_store(Path(dest))


def reader_for_object(data: object, options: TableOptions | None = None) -> GraphSource:
    """Return the reader of a graph in an object of another package.

    Args:
        data: The object: see `outgrow.graph.readers.objects.KNOWN_OBJECTS`.
        options: Options for tables; None for the defaults.

    Raises:
        InputError: Another object, several graphs, or an option that does not apply.
    """
    return open_object(data, options)


def reader_for_path(
    name_or_path: str | Path, *, data_dir: Path | None = None, options: TableOptions | None = None
) -> ResolvedSource:
    """Return the reader of a data set, or of a graph file or folder.

    Args:
        name_or_path: Name of a data set, or path.
        data_dir: Folder to look in first for the files of a named data set.
        options: Options for tables; None for the defaults.

    Raises:
        InputError: There is no such data set or file, or its format does not take an option.
    """
    path = Path(name_or_path).expanduser()
    if is_store(path):
        raise InputError(
            f"{path} is a store already", needed="a graph of another form", got="a store", repair="copy the directory"
        )
    return resolve_source(name_or_path, data_dir=data_dir, options=options)


def make_table_options(options: Mapping[str, object], function: str) -> TableOptions:
    """Return options for tables that were given by name.

    Raises:
        InputError: There is no such option, or a value is of another type.
    """
    known = {each.name: type(each.default) for each in fields(TableOptions)}
    for name in options:
        validate_choice(f"option of {function}", name, known)
    given: dict[str, Any] = dict(options)
    for name in ("label", "features", "edge_features"):
        if isinstance(given.get(name), str):
            given[name] = tuple(given[name].split(","))
        elif name in given:
            given[name] = tuple(given[name])
    return TableOptions(**given)


def _to_array(values: Any) -> Any:
    if values is None:
        return None
    try:
        return np.asarray(values.detach() if isinstance(values, torch.Tensor) else values)
    except (ValueError, TypeError) as error:
        raise InputError(
            "an array cannot be read",
            needed="an array, a dense tensor on the CPU or a list of equally long rows; features also as SciPy sparse",
            got=f"{type(values).__name__}: {str(error).partition('.')[0]}",
            repair="convert it to a NumPy array, or sparse features to scipy.sparse.csr_array",
        ) from error


def _is_bfloat16(values: Any) -> bool:
    return isinstance(values, torch.Tensor) and values.dtype == torch.bfloat16


def _to_feature_rows(values: Any) -> Any:
    if not issparse(values):
        return _to_array(values)
    sparse: Any = values
    return csr_array(sparse)


def _split_arrays(split: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(split, Mapping):
        raise InputError(
            "the split has the wrong form",
            needed='{"train": ids, "val": ids, "test": ids}',
            got=type(split).__name__,
            repair="name the parts of the split",
        )
    for name in split:
        validate_choice("part of the split", name, dict.fromkeys(_SPLITS))
    return {name: _to_array(nodes) for name, nodes in split.items()}
