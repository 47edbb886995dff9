"""New edges and nodes for a store: which tables there are, which way edges go, and the new version of the store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from outgrow.app.graph_sources import make_table_options
from outgrow.app.runs.lock import RunLock
from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.graph.builders.to_store import Progress, convert_to_store
from outgrow.graph.graph import Graph
from outgrow.graph.graph_part import require_all_features
from outgrow.graph.inverse_relations import list_forward_relations
from outgrow.graph.readers.appended import APPEND_OPTIONS, AppendedSource
from outgrow.graph.readers.tables.edge_roles import find_edge_roles
from outgrow.graph.readers.tables.node_roles import ID
from outgrow.graph.readers.tables.open_table import open_table
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.statistics.edges import count_sampled_kinds, sample_edges
from outgrow.graph.store.reader import is_store, open_store

if TYPE_CHECKING:
    Paths = str | Path | Sequence[str | Path]


@check_arguments(unchecked=("edges", "nodes"))
def append(
    store: str | Path,
    *,
    edges: str | Path | Sequence[str | Path] = (),
    nodes: str | Path | Sequence[str | Path] = (),
    out: str | Path | None = None,
    undirected: bool | None = None,
    memory_bytes: int = 1 << 30,
    **options: object,
) -> Graph:
    """Write a new version of a store, with more edges and nodes behind its own, in bounded memory.

    Nodes of the store keep their numbers and ids, so that a model that was trained on it predicts for new ones.

    Args:
        store: Directory of the store; it is replaced when the new version is complete, and kept until then.
        edges: Tables of new edges, which name nodes by their ids or, in a store without ids, by their numbers.
        nodes: Tables of new nodes, with the columns that the store was made of.
        out: Directory of the new version, if ``store`` is to stay.
        undirected: Whether to add the missing reverse of every edge, as the store was converted; None for no, if
            the edges of the store do not go both ways already.
        memory_bytes: Maximum memory to use for edges.
        **options: Options for tables: ``columns``, ``label``, ``features``, ``edge_features``, ``categorical``,
            ``split``, ``split_seed``, ``split_index``, ``unknown_nodes`` and ``inverse_relations`` of `TableOptions`.

    Returns:
        The graph of the new version, memory-mapped.

    Raises:
        InputError: The tables do not fit the store, name nodes that it has or edges to nodes that it does not have;
            or the store has several types of nodes. The store is as it was.
    """
    made = make_table_options(options, "og.append")
    given = [[Path(part)] if isinstance(part, str | Path) else [Path(each) for each in part] for part in (edges, nodes)]
    return append_to_store(
        Path(store),
        given[0],
        given[1],
        made,
        out=None if out is None else Path(out),
        undirected=undirected,
        memory_bytes=memory_bytes,
    )


def append_to_store(
    store: Path,
    edges: Sequence[Path],
    nodes: Sequence[Path],
    options: TableOptions,
    *,
    out: Path | None = None,
    undirected: bool | None = None,
    memory_bytes: int = 1 << 30,
    progress: Progress | None = None,
) -> Graph:
    """Write a new version of a store; see `append`."""
    options.refuse_all_but(APPEND_OPTIONS, "append")
    if not is_store(store):
        raise InputError(
            f"{store} is no store",
            needed="the directory of a store",
            got="a graph of another form" if store.exists() else "nothing at that path",
            repair="convert the graph first: outgrow convert SOURCE STORE",
        )
    if not edges and not nodes:
        raise InputError("there is nothing to append", needed="a table", got="none", repair="name a table of edges")
    # A link to a store stays one.
    store = store.resolve()
    with ExitStack() as stack:
        if out is None:
            # Two at a time would both start from the old version, and the second one would lose the edges of the first.
            _lock_store(store, stack)
        graph = open_store(store)
        require_all_features(graph.part, graph.name, "appending")
        both_ways = resolve_direction(graph, undirected, options)
        source = AppendedSource(graph, edges, nodes, options, reverses=both_ways)
        return convert_to_store(
            source,
            out or store,
            undirected=both_ways,
            memory_bytes=memory_bytes,
            overwrite=out is None,
            progress=progress,
        )


def _lock_store(store: Path, stack: ExitStack) -> None:
    store = store.absolute()
    try:
        # Beside the store, since the store itself is replaced.
        lock = RunLock(store.parent, f".{store.name}.lock")
    except InputError as error:
        raise InputError(
            f"{store} is being appended to",
            needed="a store that no other process writes",
            got=error.got,
            repair="wait for it to finish, then append again; or give another --out",
        ) from error
    except OSError:
        # The writer of the store says what is wrong with the folder.
        return
    stack.callback(lock.release)


def resolve_direction(graph: Graph, undirected: bool | None, options: TableOptions) -> bool:
    """Return whether the missing reverse of every edge is added.

    Raises:
        InputError: It was not said, and the edges of the graph go both ways, so that new ones may have to as well.
    """
    if undirected is not None or options.inverse_relations or not graph.num_edges:
        return bool(undirected)
    if graph.num_relations:
        try:
            list_forward_relations(graph.relation_names)
        except InputError:
            return False
    else:
        counts = count_sampled_kinds(graph.topology, sample_edges(graph.topology))
        if counts.reciprocal != counts.num_edges - counts.self_loops or not counts.reciprocal:
            return False
    raise InputError(
        "it is not clear whether new edges go both ways",
        needed="--undirected (undirected=True), which adds the missing reverse of every edge, or --directed",
        got="a store in which every edge goes both ways",
        repair="say what the store was converted with; --inverse-relations, if it was that",
    )


def sort_tables(tables: Sequence[Path], options: TableOptions) -> tuple[list[Path], list[Path]]:
    """Return which tables are of edges and which of nodes: by their names, else by their columns.

    A table is of edges if its name begins with ``edges``, of nodes if with ``nodes``; else of edges if it has a column
    of sources and one of destinations.

    Raises:
        InputError: A table does not exist, or is of no known form.
    """
    edges, nodes = list[Path](), list[Path]()
    for path in tables:
        stem = path.name.lower()
        if stem.startswith(("edges", "nodes")):
            found = edges if stem.startswith("edges") else nodes
        else:
            found = edges if _has_ends(path, options) else nodes
        found.append(path)
    return edges, nodes


def _has_ends(path: Path, options: TableOptions) -> bool:
    options = options.select_for_edges()
    table = open_table(path, named=options.columns.values())
    try:
        roles = find_edge_roles(table, options)
    except InputError:
        return False
    # Columns such as emb_1 and emb_2 beside an id are features.
    numbered = roles.src[:-1] == roles.dst[:-1] and not options.columns
    return not numbered or not {*ID} & {name.lower() for name in table.names}
