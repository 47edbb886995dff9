"""Loading of graphs by name or path, generated graphs included."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.inverse_edges import add_inverse_relations
from outgrow.graph.datasets.locate import locate_files
from outgrow.graph.datasets.registry import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.source import GraphSource
from outgrow.graph.readers.split_source import SPLIT_OPTIONS, apply_split_options
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.store.part_stores import find_part_stores
from outgrow.graph.store.reader import is_store, open_store
from outgrow.graph.synthetic.edge_signal import EdgeSignal
from outgrow.graph.synthetic.presets import GraphPreset, graph_presets
from outgrow.graph.synthetic.rmat import RMat
from outgrow.graph.synthetic.typed_presets import TypedGraphPreset, typed_presets


def list_presets() -> Mapping[str, GraphPreset | TypedGraphPreset]:
    """Return all presets by name, those of one node type first."""
    return {**graph_presets(), **typed_presets()}


class GeneratedGraph(NamedTuple):
    """Generator, and whether its graph is read as undirected."""

    source: GraphSource
    undirected: bool


def parse_generator_name(name: str) -> GeneratedGraph | None:
    """Return the generator for a name, with seed 0; None if the name does not have such a form.

    Raises:
        InputError: No such preset, or a scale that is not a number or out of range.
    """
    rmat = re.fullmatch(r"rmat-(\d+)", name)
    if rmat:
        return GeneratedGraph(RMat(scale=int(rmat[1])), undirected=True)
    signal = re.fullmatch(r"edge-signal-(\d+)", name)
    if signal:
        return GeneratedGraph(EdgeSignal(scale=int(signal[1])), undirected=False)
    preset, at, scale = name.partition("@")
    if not at:
        return None
    found = validate_choice("preset", preset, list_presets())
    try:
        factor = float(scale)
    except ValueError as error:
        raise InputError(
            f"{scale!r} is no scale",
            needed=f"{preset}@NUMBER, such as {preset}@{found.smallest_scale:.2g}",
            got=name,
            repair="write a number after the @",
        ) from error
    return GeneratedGraph(found.at_scale(factor), undirected=found.undirected)


class ResolvedSource(NamedTuple):
    """Source to read, and whether reverse edges are added by default."""

    source: GraphSource
    undirected: bool


def load_graph(
    name_or_path: str | Path,
    *,
    data_dir: Path | None = None,
    undirected: bool | None = None,
    options: TableOptions | None = None,
) -> Graph:
    """Load a data set by name, a store directory, or a file or folder of a known format; of parts the first.

    A store has precedence over a data set of the same name, and that over any other path: write ``./cora``
    for a folder with the name of a data set. Names are those of `datasets`, ``rmat-SCALE`` for an R-MAT graph
    of ``2 ** SCALE`` nodes, ``edge-signal-SCALE`` for one whose labels hang on features of edges, and
    ``PRESET@SCALE`` for a block model with the statistics of a preset, such as ``products@0.01``; generated
    graphs are made in memory, with seed 0.

    Args:
        name_or_path: The name or path.
        data_dir: First folder to search for the files of named data sets; after it come ``$OUTGROW_DATA``,
            the cache (``$XDG_CACHE_HOME/outgrow`` or ``~/.cache/outgrow``), the package, and the public
            address.
        undirected: Whether to drop duplicate edges and add missing reverse edges; None uses the default of a
            named data set, and leaves edges of files unchanged. Edges of stores are never changed.
        options: Options for tables; of stores, only ``split_index`` and ``inverse_relations`` apply, which are added
            in memory. The split of a store was checked when it was written.

    Returns:
        The graph; memory-mapped if it is a store.

    Raises:
        InputError: No such name or path (the message offers the nearest names), files that are missing and
            cannot be downloaded, or a broken file.
        StoreError: A broken store.
    """
    path = Path(name_or_path).expanduser()
    # Stores come first, so that a converted data set is mapped instead of read again.
    path = next(iter(find_part_stores(path).values()), path) if path.is_dir() and not is_store(path) else path
    if is_store(path):
        if undirected is not None:
            raise InputError(
                f"{path} is a store, whose edges are as they are",
                needed="undirected=None",
                got=f"undirected={undirected}",
                repair="choose when the store is written: outgrow convert SRC DEST --undirected",
            )
        made = options or TableOptions()
        made.without_build_options().refuse_all_but(("split_index",), f"the store {path}")
        graph = open_store(path)
        graph = graph.select_split(made.split_index) if made.split_index else graph
        return add_inverse_relations(graph) if made.inverse_relations else graph
    found = resolve_source(name_or_path, data_dir=data_dir, options=options)
    return assemble_graph(found.source, undirected=found.undirected if undirected is None else undirected)


def resolve_source(
    name_or_path: str | Path, *, data_dir: Path | None = None, options: TableOptions | None = None
) -> ResolvedSource:
    """Return the source for a name, or for a path other than a store, before it is read.

    Args:
        name_or_path: As in `load_graph`.
        data_dir: As in `load_graph`.
        options: As in `load_graph`.

    Raises:
        InputError: As in `load_graph`.
    """
    path = Path(name_or_path).expanduser()
    name = str(name_or_path)
    # If there are both, a string means the data set of that name, and a `Path` the file.
    if os.path.exists(path) and not (name in datasets() and isinstance(name_or_path, str)):
        return ResolvedSource(detect_reader(path, options), undirected=False)
    options = options or TableOptions()
    readers = options.without_build_options()
    readers.refuse_all_but(SPLIT_OPTIONS, name)
    made = parse_generator_name(name)
    if made is not None:
        source = apply_split_options(made.source, readers)
        options.apply_build_options(source)
        return ResolvedSource(source, made.undirected)
    # Before the general error: a preset without a scale is the likeliest mistake.
    if name in list_presets():
        raise InputError(
            f"{name} is a preset, of which graphs are generated at a scale",
            needed=f"{name}@SCALE",
            got=repr(name),
            repair=f"write for instance {name}@{list_presets()[name].smallest_scale * 2:.1g}",
        )
    if _looks_like_path(name):
        raise InputError(
            f"{name} does not exist",
            needed="a store directory, a file of a known form, or the name of a data set",
            got="nothing at that path",
            repair=f"correct the path, or choose a data set: {', '.join(datasets())}",
        )
    dataset = validate_choice("data set", name, datasets())
    found = locate_files(dataset, data_dir)
    source = apply_split_options(found.file_set.open_source(found.folder), readers)
    options.apply_build_options(source)
    return ResolvedSource(source, undirected=dataset.undirected)


def _looks_like_path(name: str) -> bool:
    # Decides about the message only: a mistyped path gets no list of similar names.
    return "/" in name or "\\" in name or bool(Path(name).suffix)
