"""Training on the parts of a graph, which have the features of their own nodes alone: checks, and which to open."""

from __future__ import annotations

import re
from pathlib import Path

from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.graph.partition.methods import WITHOUT_CHUNKS
from outgrow.graph.store.part_stores import choose_part_store
from outgrow.graph.store.reader import is_store, matches_store, open_store
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Strategy


def open_store_of_worker(store: Path, comm: Comm) -> Graph:
    """Open the store that a worker trains on: the same for all workers, or its own part where it is one of several.

    Args:
        store: A store, or the folder of the stores of parts, or one of these.
        comm: Communicator of the workers.

    Raises:
        InputError: There is no part for this worker on its host.
        StoreError: The store is broken.
    """
    graph = open_store(store) if is_store(store) else None
    if graph is not None and graph.part is None:
        return graph
    chosen = choose_part_store(store, comm.rank, comm.local_ranks)
    return graph if graph is not None and chosen == store else open_store(chosen)


def reopen_part_of_worker(graph: Graph, comm: Comm) -> Graph:
    """Return the graph that a worker trains on, where each process has opened the same part, or its own."""
    if graph.part is None or graph.store is None or not matches_store(graph):
        return graph
    return open_store_of_worker(graph.store, comm)


def require_trainable_part(graph: Graph, strategy: Strategy) -> None:
    """Check that a strategy can train on a part of a graph, if it is one.

    Raises:
        InputError: The strategy decides itself which nodes a worker owns, or another partition is asked for.
    """
    if graph.part is None:
        return
    if not strategy.reads_own_features:
        raise InputError(
            f"strategy {strategy.name} cannot train on parts of a graph",
            needed="full, sampled, migrate, split or orchestrate, whose workers own the nodes of any partition",
            got=f"strategy {strategy.name}, which decides itself which nodes a worker owns",
            repair="choose one of these, or give the store that the parts were made of",
        )
    asked = WITHOUT_CHUNKS.get(strategy.partition)
    # Whether nodes to train on were balanced, too, is not for the option to say; and the default asks for nothing.
    method = re.sub("-signature=[^-]*", "", graph.part.method)
    is_default = strategy.partition == type(strategy).partition
    if not is_default and (asked is None or method != asked.cache_key):
        raise InputError(
            f"{graph.name!r} is partitioned already, by another method",
            needed=f"no partition, or the one of its parts: {graph.part.method}",
            got=f"partition={strategy.partition}",
            repair="leave partition out, or cut the graph again: outgrow partition STORE --parts N --out-parts DIR",
        )
